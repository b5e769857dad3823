"""A partition at one moment, for retention and compaction to judge it by in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.broker.storage.partition import Partition
from ottla.config import TopicConfig
from ottla.log.compaction.swap import Swap
from ottla.log.log import Log, LogConfig
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.compaction.output import CleanedSegment
    from ottla.log.handles import Handles


@dataclass(frozen=True, slots=True, eq=False)
class PartitionLook:
    partition: Partition
    _log: Log
    config: TopicConfig
    segments: Sequence[Segment]
    start_offset: int
    end_offset: int
    # Committed and synced up to here. Under write.caching the high watermark runs ahead of what
    # is synced, and nothing may be rewritten or deleted that is only in memory.
    durable_offset: int
    durable_base: int
    # The segment in which the first transaction begins that is not over: from it on nobody can
    # know what compaction may take.
    stable_base: int

    @classmethod
    def at(cls, partition: Partition) -> PartitionLook:
        log, high_watermark = partition._log, partition.high_watermark
        return cls(
            partition,
            log,
            partition.config,
            log.segments,
            log.start_offset,
            log.end_offset,
            min(high_watermark.offset, log.synced.offset),
            min(high_watermark.segment_base, log.synced.segment_base),
            partition.last_stable.segment_base,
        )

    @property
    def log_config(self) -> LogConfig:
        return self._log.config

    def youngest_ms(self, at: int) -> int:
        """Blocking: of the segment at this place."""
        return self._log.youngest_ms(self.segments[at])

    def is_current(self) -> bool:
        """False when the log was opened again or moves just now, or the partition is gone."""
        partition = self.partition
        is_same = partition._log is self._log and not partition.is_being_cut
        return is_same and not partition.is_retired

    def is_up_to_date(self) -> bool:
        """False when the settings it was judged by, or the log, are others by now."""
        is_same = self.is_current() and self.partition.config is self.config
        return is_same and not self._log.fenced

    def has_same_segments(self) -> bool:
        return self._log.segments is self.segments

    def is_unchanged(self) -> bool:
        """True when not even a batch has come."""
        return (
            self.is_up_to_date()
            and not self.partition.is_being_written
            and self.has_same_segments()
            and self._log.end_offset == self.end_offset
        )

    @property
    def newest_segment(self) -> Segment:
        """The one that is written to now."""
        return self._log.segments[-1]

    def swap(self, handles: Handles, cleaned: CleanedSegment) -> Swap:
        """Puts a compacted segment in the place of those it was made from."""
        return Swap(self._log, handles, cleaned, self.is_current)
