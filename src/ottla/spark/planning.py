"""From what was asked for to ranges of offsets: pure, and free of Spark.

Positions become offsets (`resolve`), a batch gets its end (`MaximumRows`, `MinimumRows`), ranges
become the tasks of a batch (`split`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ottla.errors import OttlaError
from ottla.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Committed,
    Earliest,
    Latest,
    Position,
)
from ottla.spark.options.subscriptions import Assigned, Pattern, Subscription, Topics
from ottla.types import TopicPartition

SHOWN_MAX: Final = 5

Offsets = Mapping[TopicPartition, int]


class CannotRead(OttlaError):
    """The query cannot begin as it was asked to, in one line."""


class LogEnds(NamedTuple):
    """What a partition holds: its first offset, and the one that its next record will get."""

    earliest: int
    latest: int


class Resolved(NamedTuple):
    """Offsets for a position; `repeatable` when asking later gives the same."""

    offsets: dict[TopicPartition, int]
    repeatable: bool


class OffsetRange(NamedTuple):
    """The offsets from `start` up to and without `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


# ── which partitions ───────────────────────────────────────────────────────────────────────────


def assigned(
    subscription: Subscription, existing: Mapping[str, Sequence[int]]
) -> list[TopicPartition]:
    """The partitions of the subscription that exist, in order."""
    chosen: set[TopicPartition] = set()
    for topic, partitions in existing.items():
        match subscription:
            case Topics(names=names):
                wanted = partitions if topic in names else ()
            case Pattern():
                wanted = partitions if subscription.matches(topic) else ()
            case Assigned(partitions=named):
                wanted = [p for p in partitions if p in named.get(topic, ())]
        chosen.update(TopicPartition(topic, partition) for partition in wanted)
    return sorted(chosen)


def missing(subscription: Subscription, existing: Mapping[str, Sequence[int]]) -> list[str]:
    """What the subscription names and the cluster does not have, for a person to read."""
    match subscription:
        case Topics(names=names):
            return [f"topic {name}" for name in sorted(set(names) - set(existing))]
        case Assigned(partitions=named):
            return [
                f"topic {topic} partition {partition}" if topic in existing else f"topic {topic}"
                for topic, partitions in sorted(named.items())
                for partition in partitions
                if partition not in existing.get(topic, ())
            ]
        case Pattern():
            return []


# ── positions to offsets ───────────────────────────────────────────────────────────────────────


def times_wanted(
    position: Position, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The times in milliseconds whose offsets must be asked for, before `resolve`."""
    match position:
        case AtTimestamp(ms=ms):
            return dict.fromkeys(partitions, ms)
        case AtTimestamps(ms=times):
            return {partition: times[partition] for partition in partitions if partition in times}
        case _:
            return {}


def resolve(
    position: Position,
    ends: Mapping[TopicPartition, LogEnds],
    *,
    by_time: Offsets,
    committed: Offsets,
    is_start: bool,
) -> Resolved:
    """The offset of every partition in `ends`.

    `by_time` answers `times_wanted` (-1: no record so late), `committed` is the group's progress.
    """
    if isinstance(position, AtOffsets | AtTimestamps):
        numbers = position.offsets if isinstance(position, AtOffsets) else position.ms
        _check_same(numbers, ends, is_start)
    if isinstance(position, AtOffsets):
        named = {EARLIEST_OFFSET: 0, LATEST_OFFSET: 1}
        offsets = {
            partition: ends[partition][named[offset]] if offset in named else offset
            for partition, offset in position.offsets.items()
        }
        return Resolved(offsets, LATEST_OFFSET not in position.offsets.values())
    if isinstance(position, AtTimestamp | AtTimestamps):
        return _by_time(position, ends, by_time, is_start)
    if position is Earliest:
        return Resolved({p: found.earliest for p, found in ends.items()}, True)
    if position is Latest:
        return Resolved({p: found.latest for p, found in ends.items()}, False)
    assert position is Committed
    return Resolved({p: committed.get(p, found.earliest) for p, found in ends.items()}, True)


def _check_same(numbers: Offsets, ends: Mapping[TopicPartition, LogEnds], is_start: bool) -> None:
    """An explicit position names every partition and no other, as Spark's connector wants it."""
    unnamed, unknown = sorted(ends.keys() - numbers.keys()), sorted(numbers.keys() - ends.keys())
    if not unnamed and not unknown:
        return
    what = "starting" if is_start else "ending"
    parts = []
    if unnamed:
        parts.append(f"{_names(unnamed)} not named in it (-2 is earliest, -1 is latest)")
    if unknown:
        parts.append(f"{_names(unknown)} not among the partitions that are read")
    raise CannotRead(f"the {what} position must name every partition: " + ", ".join(parts))


def _names(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(str(partition) for partition in partitions[:SHOWN_MAX])
    more = f" and {len(partitions) - SHOWN_MAX} more" if len(partitions) > SHOWN_MAX else ""
    return f"{shown}{more} {'is' if len(partitions) == 1 else 'are'}"


def _by_time(
    position: AtTimestamp | AtTimestamps,
    ends: Mapping[TopicPartition, LogEnds],
    by_time: Offsets,
    is_start: bool,
) -> Resolved:
    offsets, repeatable = {}, True
    for partition, found in ends.items():
        offset = by_time.get(partition, -1)
        if offset < 0:
            if is_start and position.no_match == "error":
                ms = position.ms if isinstance(position, AtTimestamp) else position.ms[partition]
                raise CannotRead(
                    f"topic {partition.topic} partition {partition.partition} has no record at or "
                    f"after the starting timestamp {ms}; startingOffsetsByTimestampStrategy=latest "
                    "begins at its end"
                )
            offset, repeatable = found.latest, False
        offsets[partition] = offset
    return Resolved(offsets, repeatable)


# ── the end of a batch ─────────────────────────────────────────────────────────────────────────


class MaximumRows:
    """Shares out the offsets that one batch may take: in proportion to the lag, none left out.

    Every partition that lags gets at least one; when there are more of them than offsets, they take
    turns. (Spark's connector rounds small shares up and so exceeds its maximum.)
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._served_last: TopicPartition | None = None

    def limited(self, start: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
        """The end of the batch; `start` has every partition of `latest`."""
        lags = {p: latest[p] - start[p] for p in sorted(latest) if latest[p] > start[p]}
        total = sum(lags.values())
        if total <= self._maximum:
            return dict(latest)
        shares = self._turns(list(lags)) if self._maximum < len(lags) else self._shares(lags, total)
        return {p: start[p] + shares.get(p, 0) if p in lags else latest[p] for p in latest}

    def _turns(self, lagging: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        last = self._served_last
        served = [p for p in lagging if last is not None and p <= last]
        chosen = [*lagging[len(served) :], *served][: self._maximum]
        self._served_last = chosen[-1]
        return dict.fromkeys(chosen, 1)

    def _shares(self, lags: Offsets, total: int) -> dict[TopicPartition, int]:
        exact = {p: self._maximum * lag for p, lag in lags.items()}
        shares = {p: max(exact[p] // total, 1) for p in lags}
        spare = self._maximum - sum(shares.values())
        # What rounding left over goes to the largest remainders, one each; a partition
        # that got its minimum of one gets no second.
        cut = [p for p in lags if exact[p] >= total]
        for partition in sorted(cut, key=lambda p: (-(exact[p] % total), p))[: max(spare, 0)]:
            shares[partition] += 1
        # What the smallest got beyond their share is taken from the largest.
        for partition in sorted(shares, key=lambda p: (-shares[p], p)):
            taken = min(max(-spare, 0), shares[partition] - 1)
            shares[partition] -= taken
            spare += taken
        return shares


class MinimumRows:
    """Whether a batch waits for more rows, and for how long at most."""

    def __init__(self, minimum: int, delay_ms_max: int, now_ms: Callable[[], int]) -> None:
        self._minimum = minimum
        self._delay_ms_max = delay_ms_max
        self._now_ms = now_ms
        # The first batch does not wait, as in Spark's connector.
        self._last_batch_ms: int | None = None

    def waits(self, rows: int) -> bool:
        now_ms = self._now_ms()
        is_due = self._last_batch_ms is None or now_ms - self._last_batch_ms >= self._delay_ms_max
        if rows < self._minimum and (rows == 0 or not is_due):
            return True
        self._last_batch_ms = now_ms
        return False


# ── ranges and tasks ───────────────────────────────────────────────────────────────────────────


def ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """What lies between two offsets, without what is empty."""
    return [
        OffsetRange(partition, start[partition], end[partition])
        for partition in sorted(end)
        if partition in start and start[partition] < end[partition]
    ]


def split(
    whole: Sequence[OffsetRange], *, tasks_min: int | None, offsets_max: int | None
) -> list[OffsetRange]:
    """Cuts ranges into contiguous tasks, with the rules of Spark's connector.

    At most `offsets_max` in each; then, when there are fewer than `tasks_min`, the large ones are
    cut in proportion to their size. Roundings may make it a few tasks more or less. Without either
    a range stays whole: its order is lost when two tasks of it run at once.
    """
    pieces = [piece for piece in whole if piece.size > 0]
    if offsets_max is not None:
        pieces = [cut for one in pieces for cut in _cut(one, -(-one.size // offsets_max))]
    if tasks_min is None or len(pieces) >= tasks_min:
        return pieces
    total = sum(piece.size for piece in pieces)
    small = {piece for piece in pieces if _parts(piece.size, total, tasks_min) == 1}
    total_large = total - sum(piece.size for piece in small)
    tasks_large = max(tasks_min - len(small), 1)
    return [
        cut
        for piece in pieces
        for cut in _cut(
            piece, 1 if piece in small else _parts(piece.size, total_large, tasks_large)
        )
    ]


def _parts(size: int, total: int, parts: int) -> int:
    # Halves go up, as in Java; Python's round would send them to the even number.
    return max((2 * size * parts + total) // (2 * total), 1)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """`parts` contiguous pieces whose sizes differ by one at most; never an empty one."""
    parts = min(parts, whole.size)
    cuts = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    return [OffsetRange(whole.partition, start, end) for start, end in pairwise(cuts)]
