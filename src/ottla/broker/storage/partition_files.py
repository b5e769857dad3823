"""A partition's directory as it comes into being, and its way to the disk through a thread."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from ottla.log.directory import DataDirectory
from ottla.log.hints import Saving
from ottla.log.log import Log
from ottla.log.writing import Probing, Writing
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.storage.partition_writes import PartitionWrites
    from ottla.broker.storage.waiters import WriteWaiter


class Home:
    """A partition's directory: made with its first batch, durable with its first sync.

    While it `is_taken`, a deleted topic's directory still has its name, and nothing is made.
    """

    __slots__ = (
        "_is_doubted",
        "_is_durable",
        "_name",
        "_topic_id",
        "data",
        "is_laid_out",
        "is_taken",
    )

    def __init__(
        self, data: DataDirectory, name: TopicPartition, topic_id: bytes, *, is_durable: bool
    ) -> None:
        self.data = data
        self._name = name
        self._topic_id = topic_id
        self.is_laid_out = self._is_durable = is_durable
        self._is_doubted = False
        self.is_taken = False

    @property
    def is_to_be_laid_out(self) -> bool:
        return not self.is_laid_out or self._is_doubted

    def doubt(self) -> None:
        """A sync has failed: unless the topic's id was durable by then, it is written again.

        Another sync would say that all is well: the kernel reports a lost page once.
        """
        self._is_doubted = not self._is_durable

    def lay_out(self) -> None:
        if self.is_to_be_laid_out:
            if self.is_taken:
                raise OSError(errno.EBUSY, "a deleted topic's files are in the way", self._name)
            self.data.lay_out(self._name, self._topic_id)
            self.is_laid_out, self._is_doubted = True, False

    def make_durable(self, is_all_synced: bool) -> None:
        """Blocking, unless the whole file system has just been synced."""
        if not self._is_durable:
            if not is_all_synced:
                self.data.settle(self._name)
            self._is_durable = True


class PartitionWrite:
    """What a partition has queued, on its way to the disk in a thread."""

    __slots__ = ("_home", "_writing", "byte_count", "error", "partition", "waiters")

    def __init__(
        self,
        partition: PartitionWrites,
        home: Home,
        writing: Writing | Probing | Saving,
        byte_count: int,
        waiters: list[tuple[WriteWaiter, Any]],
    ) -> None:
        self.partition = partition
        self.byte_count = byte_count
        self.waiters = waiters
        self.error: OSError | None = None
        self._home = home
        self._writing = writing

    def run(self) -> None:
        """Blocking, in a thread."""
        try:
            self._home.lay_out()
            self._writing.run()
        except OSError as error:
            self.error = error

    def report_to(self, log: Log) -> None:
        """Back on the loop: the log learns what became of it."""
        if isinstance(self._writing, Probing):
            log.end_probe(self._writing)
        elif isinstance(self._writing, Saving):
            log.end_saving(self._writing)
        elif self.error is None:
            log.finish_write(self._writing)
        else:
            log.fail_write(self._writing)

    @property
    def is_probe(self) -> bool:
        return isinstance(self._writing, Probing)

    @property
    def has_batches(self) -> bool:
        return isinstance(self._writing, Writing)
