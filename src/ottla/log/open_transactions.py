"""Which transactions of a log have no end yet, or one that is not committed.

A consumer of committed transactions reads up to the first of them and no further: the last stable
offset. One that has ended counts until the high watermark has passed its marker, as in Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from ottla.log.values import LogPosition

Locate = Callable[[int], LogPosition]


class _Starts:
    """Places at which transactions begin, by offset; the first of them is always at hand."""

    __slots__ = ("_heap", "_places")

    def __init__(self) -> None:
        self._places: dict[int, LogPosition | None] = {}
        # Some of these may be gone already: they are dropped when they come first.
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, start: int, place: LogPosition | None) -> None:
        self._places[start] = place
        heappush(self._heap, start)

    def take(self, start: int) -> LogPosition | None:
        return self._places.pop(start, None)

    @property
    def first(self) -> int | None:
        heap, places = self._heap, self._places
        while heap and heap[0] not in places:
            heappop(heap)
        return heap[0] if heap else None

    def place_of(self, start: int) -> LogPosition | None:
        return self._places[start]

    def locate(self, find: Locate) -> None:
        for start, place in self._places.items():
            if place is None:
                self._places[start] = find(start)


class OpenTransactions:
    """By first offset. What was begun or ended last can be taken back."""

    __slots__ = ("_ended", "_ends", "_open")

    def __init__(self) -> None:
        self._open = _Starts()
        self._ended = _Starts()
        # (offset of the marker, first offset of the transaction), as they came.
        self._ends: deque[tuple[int, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._open or self._ended)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def begin(self, start: int, place: LogPosition | None) -> None:
        self._open.add(start, place)

    def end(self, start: int, marker_offset: int) -> None:
        """Its marker is in the log, and not yet committed."""
        self._ended.add(start, self._open.take(start))
        self._ends.append((marker_offset, start))

    def unbegin(self, start: int) -> None:
        """Its first batch is not in the log after all."""
        self._open.take(start)

    def unend(self, start: int) -> None:
        """Its marker, the last of those in the log, is not there after all."""
        marker_offset, ended = self._ends.pop()
        assert ended == start, f"{ended} ended at {marker_offset}, not {start}"
        self._open.add(start, self._ended.take(start))

    @property
    def first_open(self) -> int | None:
        """Where the first one begins that has no end."""
        return self._open.first

    def first_unstable(self, high_watermark: int) -> LogPosition | None:
        """Where the first one begins that has no end before the high watermark."""
        ends = self._ends
        while ends and ends[0][0] < high_watermark:
            self._ended.take(ends.popleft()[1])
        first_open, first_ended = self._open.first, self._ended.first
        if first_open is not None and (first_ended is None or first_open < first_ended):
            return self._open.place_of(first_open)
        return None if first_ended is None else self._ended.place_of(first_ended)

    def locate(self, find: Locate) -> None:
        """Blocking: those of which only the offset is known, as after a start, get their place."""
        self._open.locate(find)
        self._ended.locate(find)


def of_starts(starts: Iterable[int]) -> OpenTransactions:
    """As a snapshot tells them: by offset alone."""
    transactions = OpenTransactions()
    for start in starts:
        transactions.begin(start, None)
    return transactions
