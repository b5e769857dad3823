"""The segments of a log in a row, and the snapshots of producers that lie between them."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.log.segment import Segment


class Chain:
    """From the oldest to the one being written to.

    A change makes a new list: a reader in a thread sees the old one or the new one.
    """

    __slots__ = ("_older_bytes", "segments", "snapshots")

    def __init__(self, segments: list[Segment], snapshots: dict[int, int]) -> None:
        self.snapshots = snapshots
        self.hold(segments)

    def hold(self, segments: list[Segment]) -> Segment:
        """From now on these are the log's; returns the one being written to."""
        self.segments = segments
        self._older_bytes = sum(segment.size for segment in segments[:-1])
        return segments[-1]

    def add(self, segment: Segment) -> None:
        """The last one is finished, and this is the one being written to."""
        self._older_bytes += self.segments[-1].size
        self.segments = [*self.segments, segment]

    def shed(self, start_offset: int) -> list[Segment]:
        """Lets go of those that end before the start of the log, and returns them."""
        needed = needed_from(start_offset, self.segments)
        gone = self.segments[: -len(needed)]
        if gone:
            self.hold(needed)
            for segment in gone:
                self.snapshots.pop(segment.base_offset, None)
        return gone

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """The new one takes the place of these neighbours."""
        at = self.segments.index(old[0])
        self.hold([*self.segments[:at], new, *self.segments[at + len(old) :]])
        for segment in old[1:]:
            self.snapshots.pop(segment.base_offset, None)

    @property
    def size_bytes(self) -> int:
        return self._older_bytes + self.segments[-1].size

    def bytes_from(self, start_offset: int) -> int:
        """What the next start, with this start of the log, has to find."""
        needed = needed_from(start_offset, self.segments)
        return sum(segment.size for segment in needed if segment.is_created)


def needed_from(start_offset: int, segments: list[Segment]) -> list[Segment]:
    """Without those that end before the start of the log: their removal may have been undone."""
    first = 0
    # A segment without a file yet cannot be the only one: a restart would begin at zero.
    while (
        first + 1 < len(segments)
        and segments[first + 1].base_offset <= start_offset
        and segments[first + 1].is_created
    ):
        first += 1
    return segments[first:]
