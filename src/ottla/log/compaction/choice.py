"""Which log needs compaction most, and how much of it may be compacted: Kafka's decisions.

Pure: times of segments are asked for through functions, as they may have to read a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.log.retention import Extent

# The time of a segment by its position in the log.
TimeOf = Callable[[int], int]


class Rules(NamedTuple):
    """The settings of a topic that say when it is compacted."""

    dirty_ratio_min: float
    lag_ms_min: int
    lag_ms_max: int


class Dirtiness(NamedTuple):
    """The dirty part reaches from `first_dirty` to `end`, which is the base of a segment."""

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def wants_compaction(self, rules: Rules) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > rules.dirty_ratio_min)


def dirtiness(
    log: Sequence[Extent],
    cleaned_to: int | None,
    start_offset: int,
    final_base: int,
    rules: Rules,
    now_ms: int,
    youngest_ms: TimeOf,
    first_ms: TimeOf,
) -> Dirtiness:
    """`final_base`: all segments before this one are finished, synced and committed.

    `cleaned_to` is what the checkpoint says, if anything. One that lies outside of the log is not
    believed: then all of it counts as dirty.
    """
    first_dirty = start_offset
    if cleaned_to is not None and start_offset <= cleaned_to <= log[-1].next_base:
        first_dirty = cleaned_to
    final = [at for at, extent in enumerate(log) if extent.next_base <= final_base]
    dirty = [at for at in final if log[at].next_base > first_dirty]
    if rules.lag_ms_min > 0:
        too_young = (at for at in dirty if youngest_ms(at) > now_ms - rules.lag_ms_min)
        stop = next(too_young, None)
        if stop is not None:
            dirty = [at for at in dirty if at < stop]
    if not dirty:
        return Dirtiness(first_dirty, first_dirty, _bytes(log, final), 0, is_overdue=False)
    overdue_ms = now_ms - rules.lag_ms_max
    is_overdue = overdue_ms > 0 and any(0 < first_ms(at) < overdue_ms for at in dirty)
    clean = [at for at in final if at < dirty[0]]
    return Dirtiness(
        first_dirty,
        log[dirty[-1]].next_base,
        _bytes(log, clean),
        _bytes(log, dirty),
        is_overdue,
    )


def _bytes(log: Sequence[Extent], positions: Sequence[int]) -> int:
    return sum(log[at].size for at in positions)
