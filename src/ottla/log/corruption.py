"""Damage in what was synced: told with its place, remembered, and never repaired here.

A log with damage is fenced. It keeps every byte it has, serves what lies before the damage (and
after it, where a batch can be found again), and takes no more writes. A note in the partition's
directory outlives the process: whoever opens a log with a note reads all of it first.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ottla.errors import StorageFailed
from ottla.log.handles import Handles
from ottla.log.index import Read
from ottla.log.scan import OFFSET_DELTA_MAX, batches, is_intact
from ottla.log.segment import Segment
from ottla.log.values import LogPosition
from ottla.ports import Disk
from ottla.wire.records import BatchHeader

logger = logging.getLogger(__name__)

NOTE: Final = "corruption.json"
UNKNOWN_END: Final = 2**63 - 1
NOT_COUNTED: Final = -1


class Corruption(NamedTuple):
    """The offsets from `offset` up to `until` cannot be read; `until` may be UNKNOWN_END."""

    path: str
    position: int
    offset: int
    until: int
    reason: str
    # How many bytes the log should have, or where it should end, when that is what is wrong.
    wanted_bytes: int = NOT_COUNTED
    wanted_end: int = NOT_COUNTED

    def __str__(self) -> str:
        return f"{self.path}, byte {self.position}, offset {self.offset}: {self.reason}"

    def covers(self, offset: int) -> bool:
        return self.offset <= offset < self.until

    def limit_for(
        self, offset: int, segments: Sequence[Segment], limit: LogPosition
    ) -> LogPosition:
        """Where a reader that begins at `offset` has to stop; StorageFailed within the damage."""
        if self.covers(offset):
            raise StorageFailed(f"damaged: {self}")
        if offset >= self.until or limit.offset < self.offset:
            return limit
        for segment in segments:
            if segment.handle.path == self.path:
                return LogPosition(self.offset, segment.base_offset, self.position)
        return limit

    def joined(self, later: Corruption) -> Corruption:
        """Both as one, told by the first: what lies between them is given up."""
        first, second = sorted((self, later), key=lambda found: found.offset)
        return first._replace(until=max(first.until, second.until))


class Examined(NamedTuple):
    """The place after the last batch that was found, and what is wrong there, if anything is."""

    next_offset: int
    position: int
    corruption: Corruption | None


def examine(
    segment: Segment,
    read: Read,
    end: int,
    next_base: int | None,
    begin: Examined | None = None,
    goes_on: Callable[[int], bool] = lambda byte_count: True,
) -> Examined:
    """Blocking: every batch of a segment up to `end` by its CRC and its place.

    `next_base` is where the following segment begins, None for the last one. `goes_on` is asked
    after each batch, with its size; `begin` is what came out the last time, to go on from there.
    Offsets only rise; compaction leaves holes between them.
    """
    offset, begin_at, _ = begin or (segment.base_offset, 0, None)
    position = begin_at
    until = UNKNOWN_END if next_base is None else next_base

    def damaged(reason: str, again_at: int = until) -> Examined:
        place = (segment.handle.path, position, offset)
        return Examined(offset, position, Corruption(*place, again_at, reason))

    try:
        for position, header, batch in batches(read, begin_at, end):
            if not is_in_order(segment, header, offset, next_base):
                return damaged(f"a batch with offset {header.base_offset} does not belong here")
            if not is_intact(read, position, header, batch):
                again_at = _resumes_at(segment, read, position + header.size, end, offset, until)
                return damaged("the CRC does not match", again_at)
            offset = header.next_offset
            position += header.size
            if not goes_on(header.size):
                return Examined(offset, position, None)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return damaged(f"cannot be read: {error.strerror}")
    if position < end:
        return damaged(f"no batch in the {end - position} bytes from here on")
    return Examined(offset, position, None)


def is_in_order(
    segment: Segment, header: BatchHeader, next_offset: int, next_base: int | None
) -> bool:
    return (
        header.base_offset >= next_offset
        and header.last_offset - segment.base_offset <= OFFSET_DELTA_MAX
        and (next_base is None or header.last_offset < next_base)
    )


def _resumes_at(
    segment: Segment, read: Read, position: int, end: int, offset: int, until: int
) -> int:
    """Where reading can go on after a batch whose length may be as wrong as its contents."""
    for at, header, batch in batches(read, position, end):
        is_next = is_in_order(segment, header, offset + 1, None) and header.base_offset < until
        if is_next and is_intact(read, at, header, batch):
            return header.base_offset
        break
    return until


def survey(segments: Sequence[Segment], handles: Handles) -> Examined:
    """Blocking: all segments; the first damage joined with all that comes after it."""
    found: Corruption | None = None
    next_offset = segments[0].base_offset
    bases = [*(segment.base_offset for segment in segments[1:]), None]
    for segment, next_base in zip(segments, bases, strict=True):
        examined = examine(segment, segment.reader(handles), segment.size, next_base)
        next_offset = max(next_offset, examined.next_offset)
        if examined.corruption is not None:
            found = found.joined(examined.corruption) if found else examined.corruption
    return Examined(next_offset, segments[-1].size, found)


def first_hole(segments: Sequence[Segment], handles: Handles, byte_count: int) -> Corruption:
    """Blocking. Every batch is intact, and yet bytes are missing: where that shows.

    Holes are legal where compaction has been; then the first one is as good a place as any.
    """
    reason = f"{sum(s.size for s in segments)} bytes of log where {byte_count} were left"
    for segment, following in pairwise(segments):
        end = examine(segment, segment.reader(handles), segment.size, following.base_offset)
        if end.next_offset < following.base_offset:
            return Corruption(
                segment.handle.path,
                segment.size,
                end.next_offset,
                following.base_offset,
                f"{reason}; the next segment begins at {following.base_offset}",
                byte_count,
            )
    last = segments[-1]
    end = examine(last, last.reader(handles), last.size, None)
    place = (last.handle.path, last.size, end.next_offset)
    return Corruption(*place, UNKNOWN_END, reason, byte_count)


# --------------------------------------------------------------------------------------- the note


def leave_note(disk: Disk, directory: str, corruption: Corruption) -> None:
    """Blocking. A disk that does not take it is no reason to say nothing at all."""
    text = json.dumps({"version": 0, **corruption._asdict()}, indent=1) + "\n"
    try:
        disk.make_directory(directory)
        disk.write_file(f"{directory}/{NOTE}", text.encode())
    except OSError as error:
        logger.error("%s: the note about its damage cannot be written: %s", directory, error)


def read_note(disk: Disk, directory: str) -> Corruption | None:
    """Blocking. None when there is none, or none that says anything."""
    try:
        note = json.loads(disk.read_file(f"{directory}/{NOTE}"))
        return Corruption(**{name: note[name] for name in Corruption._fields})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def remove_note(disk: Disk, directory: str) -> None:
    """Blocking: all of the log was read and is in order again."""
    logger.warning("%s: was damaged, and is whole again", directory)
    disk.remove(f"{directory}/{NOTE}")
    disk.sync_directory(directory)
