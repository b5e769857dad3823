"""Compaction in virtual time: what a process of its own does elsewhere, a thread does here."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ottla.broker.storage.compaction_helper import CompactionFailed
from ottla.errors import OttlaError
from ottla.log.compaction.job import CompactionJob
from ottla.log.compaction.output import CleanedSegment
from ottla.log.compaction.rewrite import Compaction
from ottla.ports import Disk, Threads


class ThreadCompactor:
    """Implements `ottla.broker.storage.compaction.Compactor`."""

    process_id = 0

    def __init__(self, disk: Disk, threads: Threads) -> None:
        self._disk = disk
        self._executor = threads.executor("io-compaction", 1)
        self.cleaned_to = -1

    async def compact(self, job: CompactionJob) -> AsyncGenerator[CleanedSegment, None]:
        """New segments as they are written; the next is begun when this one has been dealt with."""
        compaction = Compaction(self._disk, job)
        segments = compaction.run()
        try:
            while (cleaned := await self._executor.run(next, segments, None)) is not None:
                yield cleaned
        except (OttlaError, OSError) as error:
            raise CompactionFailed(type(error).__name__, str(error)) from error
        self.cleaned_to = compaction.cleaned_to

    async def close(self) -> None:
        self._executor.close()
