"""A log as its readers see it: where it begins, what is damaged, which epoch ended where.

`read`, `first_at_or_after` and `max_timestamp` may run in threads, beside the one that appends.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.errors import OffsetOutOfRange, StorageFailed
from ottla.log import lookup
from ottla.log.aborted import AbortedTransaction
from ottla.log.chain import Chain
from ottla.log.corruption import Corruption
from ottla.log.handles import Handles, NotCached
from ottla.log.lookup import GoThrough, Moment
from ottla.log.opening.listing import Loaded
from ottla.log.reading import Nonsense, Reader, end_of, segment_at
from ottla.log.segment import Segment
from ottla.log.values import LogConfig, LogPosition
from ottla.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from ottla.wire.scanning import all_at_once
from ottla.wire.schema import Buffer


class LogView:
    __slots__ = (
        "_chain",
        "_epochs",
        "_handles",
        "_reader",
        "config",
        "corruption",
        "directory",
        "end_offset",
        "start_offset",
        "suspicion",
    )

    def __init__(self, handles: Handles, directory: str, config: LogConfig, loaded: Loaded) -> None:
        self.directory = directory
        self.config = config
        self.corruption = loaded.corruption
        self.suspicion: Corruption | None = None
        self.start_offset = 0
        self.end_offset = loaded.end_offset
        self._handles = handles
        self._chain = Chain(loaded.segments, loaded.snapshots)
        self._epochs = loaded.epochs
        self._reader = Reader(handles)

    @property
    def segments(self) -> Sequence[Segment]:
        """From the oldest to the one being written to. A change makes a new list."""
        return self._chain.segments

    def youngest_ms(self, segment: Segment) -> int:
        """Blocking. The time by which retention judges it."""
        return segment.youngest_ms(self._handles)

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit: LogPosition,
        *,
        cached_only: bool = True,
        with_empty: bool = False,
    ) -> Buffer | None:
        """Batches from the one with `offset` on, up to `limit`; the last one may be cut short.

        `with_empty` is for replicas: the first may be one that compaction has left without records.
        The first batch is whole even above `max_bytes`. None when the disk would have to be waited
        for; then read again in a thread, with `cached_only=False`.
        """
        if offset == limit.offset and offset >= self.start_offset:
            return b""
        if not self.start_offset <= offset < limit.offset:
            raise self._out_of_range(offset, limit)
        if self.corruption is not None:
            limit = self.corruption.limit_for(offset, self.segments, limit)
        reader = self._reader
        try:
            return reader.read(
                self._chain.segments,
                offset,
                max_bytes,
                limit,
                cached_only=cached_only,
                with_empty=with_empty,
            )
        except NotCached:
            return None
        except (Nonsense, FileNotFoundError) as error:
            if reader is not self._reader:
                # Compaction has put another segment in the place of the one that was read.
                return self.read(
                    offset, max_bytes, limit, cached_only=cached_only, with_empty=with_empty
                )
            if isinstance(error, Nonsense):
                self.suspicion = error.found
                raise StorageFailed(f"{error.found}") from None
            if offset < self.start_offset:
                raise self._out_of_range(offset, limit) from None
            raise

    def read_stable(
        self,
        offset: int,
        max_bytes: int,
        limit: LogPosition,
        *,
        cached_only: bool = True,
        known: Buffer | None = None,
    ) -> tuple[Buffer, list[AbortedTransaction]] | None:
        """As `read`, with the aborted transactions that what is read belongs to; or what another
        has read in the same turn (`known`).
        """
        # From before the read: what compaction has put in the place of these since then may have
        # no record of a transaction that was read, and then does not know it.
        segments = self._chain.segments
        data = known
        if data is None:
            data = self.read(offset, max_bytes, limit, cached_only=cached_only)
        if data is None:
            return None
        try:
            return data, self._aborted_in(segments, offset, data, cached_only=cached_only)
        except NotCached:
            return None
        except FileNotFoundError:
            if segments is self._chain.segments:
                raise
            return self.read_stable(offset, max_bytes, limit, cached_only=cached_only)

    def _aborted_in(
        self, segments: Sequence[Segment], offset: int, data: Buffer, *, cached_only: bool
    ) -> list[AbortedTransaction]:
        first = segments.index(segment_at(segments, offset))
        indexed = [segment for segment in segments[first:] if segment.aborted_bytes]
        found: list[AbortedTransaction] = []
        if not indexed or not data:
            return found
        end_offset = end_of(data)
        for segment in indexed:
            ended, is_all = segment.aborted_in(
                offset, end_offset, self._handles, cached_only=cached_only
            )
            found += ended
            if is_all:
                break
        return found

    def _out_of_range(self, offset: int, limit: LogPosition) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"offset {offset} is not in [{self.start_offset}, {limit.offset}] of {self.directory}"
        )

    def first_at_or_after(
        self, timestamp_ms: int, limit: LogPosition, go_through: GoThrough = all_at_once
    ) -> Moment | None:
        """Blocking. (offset, timestamp, leader epoch) of the first record that is not older."""
        return lookup.first_at_or_after(self, self._handles, timestamp_ms, limit, go_through)

    def max_timestamp(self, limit: LogPosition, go: GoThrough = all_at_once) -> Moment | None:
        """Blocking. (offset, timestamp, leader epoch) of the first of the youngest records."""
        return lookup.max_timestamp(self, self._handles, limit, go)

    # --------------------------------------------------------------------------------- epochs

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """Of its batches, or of a leader that has begun; -1 when there was none."""
        return self._epochs.latest

    @property
    def last_batch_epoch(self) -> LeaderEpoch:
        """Not of a leader that has begun and written nothing; -1 when the log is empty."""
        if self.end_offset == self.start_offset:
            return NO_EPOCH
        return self._epochs.epoch_at(self.end_offset - 1)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        return self._epochs.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[LeaderEpoch, int]:
        """(the largest epoch up to this one, where it ends); (-1, -1) when that is unknown."""
        return self._epochs.end_offset_for(LeaderEpoch(epoch), self.end_offset)

    def cut_for(self, epoch: LeaderEpoch, end_offset: int) -> Offset:
        """Where a follower truncates whose leader says that `epoch`, the largest it has of those up
        to this log's last, ends at `end_offset` (KIP-101, KIP-279).

        The one that ends first: what both have of the epoch, and of all before it, stays. Where
        this log lacks the epoch, the leader is asked again with the one that is then the last.
        """
        _, own_end = self._epochs.end_offset_for(epoch, self.end_offset)
        if own_end == NO_OFFSET:
            own_end = self.end_offset
        return Offset(max(self.start_offset, min(end_offset, own_end)))

    # ------------------------------------------------------------------------------ in figures

    @property
    def size_bytes(self) -> int:
        return self._chain.size_bytes

    def bytes_from(self, start_offset: int) -> int:
        """What the next start, with this start of the log, has to find."""
        return self._chain.bytes_from(start_offset)

    @property
    def segment_count(self) -> int:
        return len(self._chain.segments)
