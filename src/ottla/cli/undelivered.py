"""Why a message was not delivered: what librdkafka leaves out, gathered and asked for.

It tries for as long as it may and then says only that time is up. What brokers have answered
meanwhile is in its own log, which is cheap to keep: a line per request.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from ottla.cli.clients import Cluster, words
from ottla.cli.configs import settings_of
from ottla.cli.failures import CommandFailed
from ottla.cli.kafka import KafkaError, KafkaException, Message

ANSWERED: Final = re.compile(r" (?P<place>\S+ \[\d+\]): MessageSet .* encountered error: (.*)$")
ACTIONS: Final = re.compile(r" \(actions .*\).*$")
DISK_ERROR: Final = KafkaError(KafkaError.KAFKA_STORAGE_ERROR).str().removeprefix("Broker: ")
ASKING_TIMEOUT_S: Final = 5.0


class Answers(logging.Handler):
    """The last error that brokers have answered for each partition."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found = ANSWERED.search(record.getMessage())
        if found:
            error = ACTIONS.sub("", found[2]).removeprefix("Broker: ")
            self.last[found["place"]] = error

    def settings(self) -> dict[str, Any]:
        """With these a producer writes its log here, and nowhere else."""
        logger = logging.Logger("librdkafka", logging.DEBUG)
        logger.addHandler(self)
        return {"debug": "msg", "log_level": "7", "logger": logger}


class Reasons:
    """Complaints of the client as a person can use them; what must be asked is asked once."""

    def __init__(self, cluster: Cluster, topic: str, sent_bytes_max: int) -> None:
        self.answers = Answers()
        self._cluster = cluster
        self._topic = topic
        self._sent_bytes_max = int(cluster.settings.get("message.max.bytes", sent_bytes_max))
        self._taken_bytes_max: str | None = None
        self._disks: str | None = None

    def producer_settings(self) -> dict[str, Any]:
        return {} if "debug" in self._cluster.settings else self.answers.settings()

    def unsent(self, error: KafkaError, size_bytes: int) -> str:
        """Of a message that the client does not even try to send."""
        if error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            return f"was not delivered: {words(error)}"
        return (
            f"was not delivered: it has {size_bytes} bytes, but this command sends at most "
            f"{self._sent_bytes_max} in one message; -X message.max.bytes=N allows more, and the "
            "topic's max.message.bytes must allow it too."
        )

    def undelivered(self, error: KafkaError, message: Message) -> str:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            size_bytes = len(message.value() or b"") + len(message.key() or b"")
            return (
                f"was not delivered: it has {size_bytes} bytes, but {self._topic} takes at most "
                f"{self._topics_limit()} in one batch; `ottla topics alter {self._topic} --set "
                "max.message.bytes=N` allows more."
            )
        answer = self.answers.last.get(f"{message.topic()} [{message.partition()}]")
        if error.code() != KafkaError._MSG_TIMED_OUT or answer is None:
            return f"was not delivered: {words(error)}"
        rooms = self._rooms() if answer == DISK_ERROR else ""
        return (
            f"was not delivered within {self._cluster.timeout_s:g} s; the broker's last answer: "
            f"{answer}{rooms}."
        )

    def _topics_limit(self) -> str:
        if self._taken_bytes_max is None:
            try:
                rows = settings_of(self._cluster, self._cluster.admin(), "topic", self._topic)
                found = {row["name"]: str(row["value"]) for row in rows}
                self._taken_bytes_max = found["max.message.bytes"]
            except (CommandFailed, KafkaException, KeyError):
                self._taken_bytes_max = "its max.message.bytes"
        return self._taken_bytes_max

    def _rooms(self) -> str:
        if self._disks is None:
            directories = directories_of(self._cluster)
            self._disks = f" ({', '.join(directories)})" if directories else ""
        return self._disks


def directories_of(cluster: Cluster) -> list[str]:
    """The data directories of all brokers and their room; none where they cannot be asked."""
    # librdkafka has no call for it. Our own client reads the same names of settings.
    from ottla.client.blocking import Blocking
    from ottla.client.cluster import Cluster as Brokers
    from ottla.client.failures import ClientFailed
    from ottla.client.settings import ClientSettings
    from ottla.errors import OttlaError
    from ottla.wire.messages.describe_log_dirs import (
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
        DescribeLogDirsResult,
    )

    async def ask(brokers: Brokers) -> list[DescribeLogDirsResult]:
        await brokers.refresh(())
        found: list[DescribeLogDirsResult] = []
        for node_id in brokers.image.addresses:
            connection = await brokers.to_node(node_id)
            request = DescribeLogDirsRequest(topics=[])
            found += (await connection.ask(request, DescribeLogDirsResponse)).results
        return found

    try:
        settings = ClientSettings.from_kafka(cluster.settings)
        with Blocking(settings) as client:
            results = client.run(ask, ASKING_TIMEOUT_S)
    except (ClientFailed, OttlaError, OSError):
        return []
    return [
        f"{result.log_dir} is offline"
        if result.error_code
        else f"{result.log_dir} has {result.usable_bytes} of {result.total_bytes} bytes free"
        for result in results
    ]
