"""What a compaction is told about a log: it may run in another process, so this is all it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Source(NamedTuple):
    """A segment to be compacted."""

    base_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """All that is to be known of a log to compact it; `end` is where the untouched part begins.

    `producers` has, for each active one, the last offset of its data (-1: none) and its epoch.
    """

    directory: str
    sources: Sequence[Source]
    first_dirty: int
    end: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    producers: Mapping[int, tuple[int, int]]
