"""The way of one partition's batches to its leader: their order, sequences, and second chances.

A lane does no IO and has no clock. The producer asks it what may be sent (`next`) and tells it what
became of each batch; the lane keeps the rules of Kafka's idempotent producer:

- Batches are numbered without gaps. A batch that is sent again keeps its sequence, so that the
  leader finds out by itself whether it has it.
- After a failure that may pass, nothing is sent before all that is under way has been answered.
  Then everything unanswered goes again, in order, one at a time until the last of it is through.
- The first batch under an identity travels alone: a leader that has never heard of a producer
  takes any sequence, so a second batch could slip in before a first that failed.
- A batch that is too large for the leader goes again in pieces, which share its sequences among
  them: it is not in the log, and what came after it was out of order and is not there either.
- A leader that has lost count of us is met with a new identity, counting from 0, but only when it
  is certain that none of what would be counted anew is in the log. Otherwise the lane gives up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from ottla.errors import ErrorCode, OttlaError
from ottla.types import NO_PRODUCER, ProducerEpoch, ProducerId, TopicPartition
from ottla.wire.records import SEQUENCE_MAX

# How many batches of a producer a leader remembers, and so how many may be unanswered.
WINDOW_BATCHES: Final = 5


class SequenceLost(OttlaError):
    """The leader lost count of a producer, and some batches may or may not be in its log."""


class Identity(NamedTuple):
    producer_id: ProducerId
    epoch: ProducerEpoch


class Verdict(Enum):
    """What an answer means for a batch."""

    DONE = auto()
    AGAIN = auto()  # it is not in the log
    AGAIN_IN_DOUBT = auto()  # it may be in the log
    COUNT_LOST = auto()  # the leader expects another sequence or another producer
    FAILED = auto()


_AGAIN: Final = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
# A leader that is deposed while it waits for its followers answers NOT_LEADER after the append.
_AGAIN_IN_DOUBT: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
_COUNT_LOST: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
)
_VERDICTS: Final[dict[int, Verdict]] = {
    ErrorCode.NONE: Verdict.DONE,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Verdict.DONE,
    **dict.fromkeys(_AGAIN, Verdict.AGAIN),
    **dict.fromkeys(_AGAIN_IN_DOUBT, Verdict.AGAIN_IN_DOUBT),
    **dict.fromkeys(_COUNT_LOST, Verdict.COUNT_LOST),
}


def verdict_of(error_code: int) -> Verdict:
    """Total: what is not known to pass has failed."""
    return _VERDICTS.get(error_code, Verdict.FAILED)


@dataclass(slots=True, eq=False)
class Parcel:
    """One record batch on its way."""

    data: bytearray
    count: int
    deadline: float = 0.0
    number: int = -1  # its place among all batches of the lane
    sequence: int = -1
    is_in_doubt: bool = False
    lost_count: bool = False
    reason: str = ""  # why it was not taken the last time
    pieces: Sequence[Parcel] = ()  # what goes in its place, if anything


class Lane:
    """All batches of one partition that are not acknowledged yet."""

    def __init__(self, partition: TopicPartition, *, is_idempotent: bool) -> None:
        self.partition = partition
        self.is_idempotent = is_idempotent
        self.identity: Identity | None = None
        self.refused_identity: Identity | None = None
        self._queue: deque[Parcel] = deque()
        self._under_way: list[Parcel] = []
        self._again: list[Parcel] = []
        self._next_number = 0
        self._next_sequence = 0
        self._acknowledged_until = -1  # the highest number
        self._repair_until = -1  # up to this number one batch at a time
        self._is_known = False  # the leader has taken a batch of this lane
        self.refused_bytes: int | None = None  # the smallest batch that was too large

    def __len__(self) -> int:
        return len(self._queue) + len(self._under_way) + len(self._again)

    @property
    def wants_identity(self) -> bool:
        return self.is_idempotent and self.identity is None and bool(self._queue)

    @property
    def oldest(self) -> Parcel | None:
        """The batch whose deadline comes first."""
        waiting = [*self._under_way, *self._again]
        if self._queue:
            waiting.append(self._queue[0])
        return min(waiting, key=lambda parcel: parcel.number, default=None)

    @property
    def oldest_reason(self) -> str:
        """Why the lane stands still, if it does."""
        oldest = self.oldest
        return "" if oldest is None else oldest.reason

    def add(self, parcel: Parcel) -> None:
        parcel.number = self._next_number
        self._next_number += 1
        self._queue.append(parcel)

    def begin(self, identity: Identity) -> None:
        """From here on the lane counts from 0 under this identity."""
        self.identity = identity
        self._next_sequence = 0

    def peek(self) -> Parcel | None:
        """What `next` would give."""
        if not self._queue or self._again or len(self._under_way) >= self._window:
            return None
        if self.is_idempotent and self.identity is None:
            return None
        return self._queue[0]

    def next(self) -> Parcel | None:
        """The batch to send now, with its sequence; None while there is something to wait for."""
        parcel = self.peek()
        if parcel is None:
            return None
        self._queue.popleft()
        self._under_way.append(parcel)
        if self.is_idempotent and parcel.sequence < 0:
            parcel.sequence = self._next_sequence
            self._next_sequence = (parcel.sequence + parcel.count) & SEQUENCE_MAX
        return parcel

    @property
    def _window(self) -> int:
        # Without sequences only a batch that travels alone cannot be overtaken by a later one.
        if not self._is_known or self._repair_until > self._acknowledged_until:
            return 1
        return WINDOW_BATCHES if self.is_idempotent else 1

    def judge(self, parcel: Parcel, verdict: Verdict) -> None:
        """A batch was answered, or never will be; SequenceLost when the lane cannot go on."""
        self._under_way.remove(parcel)
        if verdict is Verdict.DONE:
            self._is_known = True
            self._acknowledged_until = max(self._acknowledged_until, parcel.number)
        elif verdict is not Verdict.FAILED:
            parcel.is_in_doubt |= verdict is Verdict.AGAIN_IN_DOUBT
            parcel.lost_count = verdict is Verdict.COUNT_LOST
            self._again.append(parcel)
        if self._again and not self._under_way:
            self._rewind()

    def divide(self, parcel: Parcel, pieces: Sequence[Parcel]) -> None:
        """A batch was refused for its size: these go in its place, stamped as parts of it."""
        for piece in pieces:
            piece.deadline, piece.reason = parcel.deadline, parcel.reason
            piece.is_in_doubt = parcel.is_in_doubt
        parcel.pieces = pieces
        self.judge(parcel, Verdict.AGAIN)

    def _rewind(self) -> None:
        """Everything that was under way is answered: what was not taken goes back to the front."""
        unanswered = sorted(self._again, key=lambda parcel: parcel.number)
        self._again.clear()
        again = [piece for parcel in unanswered for piece in parcel.pieces or (parcel,)]
        self._queue.extendleft(reversed(again))
        if len(again) > len(unanswered):
            self._number_anew(unanswered[0].number)
        self._repair_until = max(self._repair_until, again[-1].number)
        # After a batch that was not taken all later ones are out of order; only when the first
        # of them is, the leader has really lost count.
        if again[0].lost_count:
            self._count_anew(again)

    def _number_anew(self, first: int) -> None:
        """All that is not acknowledged is in the queue and in order, in more places than before."""
        for number, parcel in enumerate(self._queue, first):
            parcel.number = number
        self._next_number = first + len(self._queue)

    def _count_anew(self, again: list[Parcel]) -> None:
        first = again[0]
        counted = [parcel for parcel in self._queue if parcel.sequence >= 0]
        if self._acknowledged_until > first.number:
            raise SequenceLost(
                f"{self.partition}: the leader took a later batch before one of sequence "
                f"{first.sequence} ({first.reason}); sending it now would change the order"
            )
        if any(parcel.is_in_doubt for parcel in counted):
            raise SequenceLost(
                f"{self.partition}: the leader lost count of producer {self._producer_id} at "
                f"sequence {first.sequence} ({first.reason}) while batches without an answer may "
                "be in the log already; sending them under a new producer id could double them"
            )
        for parcel in counted:
            parcel.sequence = -1
        self.refused_identity, self.identity = self.identity, None

    @property
    def _producer_id(self) -> ProducerId:
        return NO_PRODUCER if self.identity is None else self.identity.producer_id
