"""What can go wrong between a client and its brokers; every message is one line for a person.

What a broker refuses becomes the house's own error where there is one (`errors.py`), otherwise
`Refused`. `is_passing` says what is worth another try.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla import errors
from ottla.errors import CODES, ErrorCode, OttlaError, code_of
from ottla.types import TopicPartition

PARTITIONS_NAMED_MAX: Final = 10


class ClientFailed(OttlaError):
    """The root of what only a client runs into."""


class BadSetting(ClientFailed):
    """A setting that cannot be meant, or that this client does not have."""


class Unreachable(ClientFailed):
    """A broker that cannot be talked to at the moment; it may be restarting."""


class CannotConnect(Unreachable): ...


class ConnectionLost(Unreachable): ...


class NoAnswer(Unreachable):
    """A broker took a request and did not answer it in time."""


class BadReply(ClientFailed):
    """Bytes that no Kafka broker sends."""


class UnsupportedBroker(ClientFailed):
    """A broker with which we have no common version of an API."""


class NotTrusted(ClientFailed):
    """TLS did not come about: a certificate, a name or a protocol that one side refuses."""


class LoginFailed(ClientFailed):
    """The broker refused the login, or could not prove that it knows the password."""


class GaveUp(ClientFailed):
    """What should have passed did not pass in `retry_timeout_s`."""


class Refused(ClientFailed):
    """A code of Kafka's for which the house has no error of its own."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class OffsetOutOfRange(errors.OffsetOutOfRange):
    """The wanted offset is not, or no longer, in the log."""

    def __init__(
        self, partition: TopicPartition, offset: int, log_start: int, high_watermark: int
    ) -> None:
        super().__init__(partition, offset, log_start, high_watermark)
        self.partition = partition
        self.offset = offset
        self.log_start = log_start
        self.high_watermark = high_watermark

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.offset} is wanted, "
            f"available are {self.log_start} to {self.high_watermark}"
        )


class NothingCame(ClientFailed):
    """The log goes on, as its leader says, and the leader does not give what is in it."""

    def __init__(self, partition: TopicPartition, offset: int, end: int, patience_s: float) -> None:
        super().__init__(partition, offset, end, patience_s)
        self.partition = partition
        self.offset = offset
        self.end = end
        self.patience_s = patience_s

    def __str__(self) -> str:
        return (
            f"{self.partition}: no record came for offset {self.offset} in {self.patience_s:g} s "
            f"(kafkaConsumer.pollTimeoutMs), although the log goes on to {self.end}: "
            "look at the broker's log"
        )


class PartitionsFailed(ClientFailed):
    """Several partitions of one question failed, each for its own reason."""

    def __init__(self, reasons: Mapping[TopicPartition, OttlaError]) -> None:
        super().__init__(dict(reasons))
        self.reasons = dict(reasons)

    def __str__(self) -> str:
        named = [str(reason) for _, reason in sorted(self.reasons.items())]
        more = len(named) - PARTITIONS_NAMED_MAX
        tail = f" and {more} more" if more > 0 else ""
        return f"{len(named)} partitions failed: {'; '.join(named[:PARTITIONS_NAMED_MAX])}{tail}"


_DOMAIN: Final[dict[int, type[OttlaError]]] = {
    code: kind
    for kind, code in reversed(CODES.items())
    if issubclass(kind, OttlaError) and kind is not errors.TransactionalIdRefused
}

PASSING_CODES: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
# Right after a topic was made some brokers do not know it yet, but mostly it is not there at all.
SOON_PASSING_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


def refusal(code: int, where: object, note: str | None = None) -> OttlaError:
    """The error for what a broker answered about `where`: a partition, a group, a topic."""
    name = code_name(code)
    text = f"{where}: {name} ({note})" if note else f"{where}: {name}"
    kind = _DOMAIN.get(code)
    if kind is None:
        return Refused(text, code)
    return kind(text)


def code_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def is_passing(error: BaseException, *, soon: bool = False) -> bool:
    """Whether the same question may be answered in a while; `soon`: within moments."""
    if isinstance(error, Unreachable):
        return True
    if isinstance(error, PartitionsFailed):
        return all(is_passing(reason, soon=soon) for reason in error.reasons.values())
    if isinstance(error, Refused):
        code = error.code
    elif isinstance(error, OttlaError):
        code = code_of(error)
    else:
        return False
    return code in PASSING_CODES or (soon and code in SOON_PASSING_CODES)


def together(reasons: Mapping[TopicPartition, OttlaError]) -> OttlaError:
    """One error for all of them: what does not pass hides what might."""
    final = {
        partition: reason
        for partition, reason in reasons.items()
        if not is_passing(reason, soon=True)
    }
    told = final or reasons
    if len(told) == 1:
        return next(iter(told.values()))
    return PartitionsFailed(told)
