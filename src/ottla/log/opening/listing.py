"""What lies in the directory of a partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ottla.log import epochs
from ottla.log.aborted import AbortedTransaction
from ottla.log.corruption import NOTE, Corruption
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.log.producer_state import EMPTY_SNAPSHOT_BYTES, CorruptSnapshot, ProducerState
from ottla.log.scan import batches, whole
from ottla.log.segment import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
)
from ottla.log.site import Site

OFFSET_MAX: Final = 2**63 - 1
_OFFSET_DIGITS: Final = 20
_LEFTOVERS: Final = (
    DELETED,
    CLEANED,
    OFFSET_INDEX + SWAP,
    TIME_INDEX + SWAP,
    TXN_INDEX + SWAP,
    ".tmp",
)
_ENTRY_BYTES: Final = {OFFSET_INDEX: OFFSET_ENTRY.size, TIME_INDEX: TIME_ENTRY.size}


@dataclass(slots=True)
class Found:
    """Segments by base offset, sizes of snapshots by offset, and what does not belong there."""

    segments: list[Segment] = field(default_factory=list)
    snapshots: dict[int, int] = field(default_factory=dict)
    unindexed: list[Segment] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    # Base offsets of compacted segments that have not yet taken their place.
    swaps: list[int] = field(default_factory=list)
    has_epochs: bool = False
    has_note: bool = False


@dataclass(slots=True)
class Loaded:
    """A log as its files tell it."""

    segments: list[Segment]
    end_offset: int
    producers: ProducerState
    epochs: epochs.Epochs
    snapshots: dict[int, int]
    corruption: Corruption | None = None
    # Of a damaged log: nothing moves it before the damage is gone.
    recovery_point: int | None = None


def look(site: Site) -> Found:
    found = Found()
    index_bytes: dict[str, dict[int, int]] = {OFFSET_INDEX: {}, TIME_INDEX: {}, TXN_INDEX: {}}
    for name, size in site.disk.sizes(site.directory):
        digits, suffix = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
        if name == epochs.FILE_NAME:
            found.has_epochs = True
        elif name == NOTE:
            found.has_note = True
        elif name.endswith(_LEFTOVERS):
            found.leftovers.append(name)
        elif len(digits) == _OFFSET_DIGITS and digits.isdecimal():
            offset = int(digits)
            if suffix == LOG:
                segment = Segment(site.directory, offset, size, site.now_ms)
                segment.is_created = True
                found.segments.append(segment)
            elif suffix == LOG + SWAP:
                found.swaps.append(offset)
            elif suffix == SNAPSHOT:
                found.snapshots[offset] = size
            elif suffix in index_bytes:
                index_bytes[suffix][offset] = size
    found.segments.sort(key=lambda segment: segment.base_offset)
    for segment in found.segments:
        segment.aborted_bytes = index_bytes[TXN_INDEX].get(segment.base_offset, 0)
    found.unindexed = [s for s in found.segments if s.size and not _is_indexed(s, index_bytes)]
    return found


def _is_indexed(segment: Segment, index_bytes: dict[str, dict[int, int]]) -> bool:
    return all(
        index_bytes[suffix].get(segment.base_offset, -1) % entry_bytes == 0
        for suffix, entry_bytes in _ENTRY_BYTES.items()
    )


def read_snapshot(site: Site, offset: int, size: int) -> ProducerState | None:
    """None when the file cannot be believed."""
    if size == EMPTY_SNAPSHOT_BYTES:
        return ProducerState()
    try:
        return ProducerState.decode(site.disk.read_file(site.path(offset, SNAPSHOT)))
    except (CorruptSnapshot, FileNotFoundError):
        return None


def producers_at(
    site: Site, segments: list[Segment], snapshots: dict[int, int], offset: int
) -> ProducerState:
    """Blocking: the newest snapshot up to `offset`, and the batches between the two.

    A snapshot from before the first segment is of no use: who has written since then would be
    taken for somebody who has left out a message.
    """
    state, state_offset = ProducerState(), 0
    first = segments[0].base_offset
    for known_at in sorted((at for at in snapshots if first <= at <= offset), reverse=True):
        known = read_snapshot(site, known_at, snapshots[known_at])
        if known is not None:
            state, state_offset = known, known_at
            break
    following = [*(segment.base_offset for segment in segments[1:]), offset]
    for segment, next_base in zip(segments, following, strict=True):
        if next_base > state_offset and segment.base_offset < offset:
            for _ in _replayed(site, state, segment, state_offset, offset):
                pass
    return state


def aborted_in(site: Site, segments: list[Segment], snapshots: dict[int, int], at: int) -> bytes:
    """Blocking: the transaction index of a segment, as its batches and those before tell it."""
    segment = segments[at]
    state = producers_at(site, segments[: at + 1], snapshots, segment.base_offset)
    ended = _replayed(site, state, segment, segment.base_offset, OFFSET_MAX)
    return b"".join(transaction.encode() for transaction in ended)


def _replayed(
    site: Site, state: ProducerState, segment: Segment, start_offset: int, end_offset: int
) -> Iterator[AbortedTransaction]:
    """Blocking: the state takes in a part of the segment; yields what was aborted in it."""
    start = segment.position_before(start_offset, site.handles, cached_only=False)
    read = segment.reader(site.handles)
    for position, header, batch in batches(read, start, segment.size):
        if start_offset <= header.base_offset < end_offset:
            all_of_it = whole(read, position, header, batch) if header.is_control else batch
            aborted = state.replay(header, all_of_it, site.now_ms)
            if aborted is not None:
                yield aborted
