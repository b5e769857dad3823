"""Which replicas go where, so that nodes carry alike: leaders, replicas, bytes and traffic. No IO.

Of each of the four there is a band around the mean, ten percent wide or as wide as whole partitions
make it. What lies outside costs its distance squared, so that whoever carries most gives first, and
inside the band nothing is moved. The search takes the move that saves most, where several save as
much the one with the fewest bytes, until none saves anything; afterwards each partition goes back
that is not needed where it went. Replicas never share a host, and never get to fewer racks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Final, NamedTuple, TypeAlias

# A topic and the number of a partition.
Place: TypeAlias = tuple[str, int]
# By metric: what a node carries, or what a replica adds to it.
Burden: TypeAlias = tuple[float, float, float, float]

LEADERS, REPLICAS, BYTES, TRAFFIC = range(4)
METRICS: Final = ("leaders", "replicas", "bytes", "traffic")
# What moves bytes comes first: leaders follow from where the replicas are.
ORDER: Final = (REPLICAS, BYTES, TRAFFIC, LEADERS)
BAND: Final = 0.10
# A plan goes a little further, so that what does not fit exactly is still within the band.
AIM: Final = 0.09
# Less than this is not worth a move, however large its share may be.
BYTES_MIN: Final = 1024 * 1024
TRAFFIC_MIN: Final = 16 * 1024
# Of one node's replicas so many are looked at in one step, evenly spread by size.
CANDIDATES_MAX: Final = 64
SWAPPED_MAX: Final = 40
PAIRS_MAX: Final = 5
SAVING_MIN: Final = 1e-9


class Site(NamedTuple):
    """A node, and with whom it would be lost."""

    id: int
    rack: str | None = None
    host: Hashable = None
    """Nodes with the same one are on one host; None is a host of its own."""


class Held(NamedTuple):
    """A partition and where it lies, who is to lead it first."""

    replicas: tuple[int, ...]
    size_bytes: int = 0
    bytes_per_second: float = 0.0
    is_fixed: bool = False
    """It counts and is not moved: it is on its way, or nobody can give it away."""

    def burden(self, position: int) -> Burden:
        """What each replica stores and takes in; who leads gives it to all others, too."""
        leads = position == 0
        copies = len(self.replicas) if leads else 1
        return (float(leads), 1.0, float(self.size_bytes), self.bytes_per_second * copies)


class Plan(NamedTuple):
    after: dict[Place, tuple[int, ...]]
    """Of the partitions that change, their replicas."""
    stranded: list[Place]
    """Those that are to leave a node and have nowhere to go."""


def planned(
    nodes: Iterable[Site],
    partitions: Mapping[Place, Held],
    leaving: Collection[int] = (),
    closed: Collection[int] = (),
    *,
    evens: bool = True,
    may_share_racks: bool = False,
    steps_max: int | None = None,
) -> Plan:
    """Nobody is left on a node that is leaving; with `evens` all others carry alike afterwards.

    A closed node gets nothing, and keeps what it has. With `steps_max` it is the beginning of such
    a plan: the steps that save most.
    """
    board = _Board(nodes, partitions, leaving, closed)
    stranded = _evacuate(board, may_share_racks=may_share_racks)
    changed = set(board.changed())
    if evens:
        _spread_racks(board)
        if not board.is_even:
            _even(board, steps_max)
        _take_back(board)
    else:
        while board.hand_on(LEADERS, changed):
            pass
    return Plan(board.changed(), stranded)


def skews(nodes: Iterable[Site], partitions: Mapping[Place, Held]) -> dict[str, float]:
    """By metric the distance between the fullest node and the emptiest, as a part of the mean."""
    board = _Board(nodes, partitions)
    found = {}
    for metric, name in enumerate(METRICS):
        loads = [board.loads[node][metric] for node in board.open]
        mean = sum(loads) / max(1, len(loads))
        found[name] = (max(loads) - min(loads)) / mean if mean else 0.0
    return found


def is_even(nodes: Iterable[Site], partitions: Mapping[Place, Held]) -> bool:
    """Whether every node carries as much as it should, within the band."""
    return _Board(nodes, partitions).is_even


class _Board:
    """The partitions as they would lie, what each node then carries, and what that costs."""

    def __init__(
        self,
        nodes: Iterable[Site],
        partitions: Mapping[Place, Held],
        leaving: Collection[int] = (),
        closed: Collection[int] = (),
    ) -> None:
        self.sites = {site.id: site for site in nodes}
        self.leaving = frozenset(leaving)
        self.open = sorted(self.sites.keys() - {*leaving, *closed})
        self.partitions = partitions
        self.now = {place: held.replicas for place, held in partitions.items()}
        # The largest first; the number of a place here is what nodes remember of it.
        self.places = sorted(partitions, key=lambda at: (-partitions[at].size_bytes, at))
        self._number = {place: number for number, place in enumerate(self.places)}
        self._held: dict[int, set[int]] = {node: set() for node in self.sites}
        self.loads: dict[int, Burden] = dict.fromkeys(self.sites, (0.0, 0.0, 0.0, 0.0))
        totals = [0.0] * len(METRICS)
        for place, held in partitions.items():
            for position, node in enumerate(held.replicas):
                burden = held.burden(position)
                totals = [total + part for total, part in zip(totals, burden, strict=True)]
                self._put(place, node, burden)
        self._totals = totals
        self._bands = self._bands_of(AIM)

    def _bands_of(self, width: float) -> list[tuple[float, float, float]]:
        count = len(self.open)
        return [_band(metric, total, count, width) for metric, total in enumerate(self._totals)]

    @property
    def is_even(self) -> bool:
        """Whether every node carries as much as it should, within the band."""
        bands = self._bands_of(BAND)
        return all(
            lower <= carried <= upper
            for node in self.open
            for carried, (lower, upper, _) in zip(self.loads[node], bands, strict=True)
        )

    def _put(self, place: Place, node: int, burden: Burden) -> None:
        if node in self.sites:
            self.loads[node] = _sum(self.loads[node], burden)
            self._held[node].add(self._number[place])

    def _take(self, place: Place, node: int, burden: Burden) -> None:
        if node in self.sites:
            self.loads[node] = _difference(self.loads[node], burden)
            self._held[node].discard(self._number[place])

    # ------------------------------------------------------------------------------- what is

    def changed(self) -> dict[Place, tuple[int, ...]]:
        return {
            place: replicas
            for place, replicas in self.now.items()
            if replicas != self.partitions[place].replicas
        }

    def cost(self, load: Burden) -> float:
        """By how much a node carries too much or too little."""
        cost = 0.0
        for carried, (lower, upper, mean) in zip(load, self._bands, strict=True):
            if carried > upper:
                cost += ((carried - upper) / mean) ** 2
            elif carried < lower:
                cost += ((lower - carried) / mean) ** 2
        return cost

    def total_cost(self) -> float:
        return sum(self.cost(self.loads[node]) for node in self.open)

    def racks(self, nodes: Iterable[int]) -> set[str | None]:
        return {self.sites[node].rack for node in nodes if node in self.sites}

    def host(self, node: int) -> Hashable:
        site = self.sites.get(node)
        return node if site is None or site.host is None else (site.rack, site.host)

    def may_move(self, place: Place, source: int, target: int) -> bool:
        """Whether the replica may go there: another host, and not fewer racks."""
        replicas = self.now[place]
        if target in replicas or self.partitions[place].is_fixed:
            return False
        others = [node for node in replicas if node != source]
        if any(self.host(node) == self.host(target) for node in others):
            return False
        return len(self.racks([*others, target])) >= len(self.racks(replicas))

    def movable(self, source: int, target: int, count: int) -> list[Place]:
        """Some of what the one may give to the other, evenly spread by size."""
        numbers = sorted(self._held[source])
        stride = max(1, math.ceil(len(numbers) / count))
        places = (self.places[number] for number in numbers[::stride])
        return [place for place in places if self.may_move(place, source, target)]

    # ---------------------------------------------------------------------------- what is done

    def lay(self, place: Place, replicas: tuple[int, ...]) -> None:
        held = self.partitions[place]
        for position, node in enumerate(self.now[place]):
            self._take(place, node, held.burden(position))
        self.now[place] = replicas
        for position, node in enumerate(replicas):
            self._put(place, node, held.burden(position))

    def with_move(self, place: Place, source: int, target: int) -> tuple[int, ...]:
        return tuple(target if node == source else node for node in self.now[place])

    def move(self, place: Place, source: int, target: int) -> None:
        self.lay(place, self.with_move(place, source, target))

    # ------------------------------------------------------------------------- what would save

    def improve(self, metric: int) -> bool:
        """The best of the cheap ways to come closer to an even load, if any."""
        if metric in (LEADERS, TRAFFIC) and self.hand_on(metric):
            return True
        return any(self._shift(*pair) for pair in self._pairs(metric)) or any(
            self._swap(*pair) for pair in islice(self._pairs(metric), PAIRS_MAX)
        )

    def _pairs(self, metric: int) -> Iterator[tuple[int, int]]:
        """Who could give to whom, the fullest and the emptiest first."""
        lower, upper, _ = self._bands[metric]
        by_load = sorted(self.open, key=lambda node: (-self.loads[node][metric], node))
        for source, target in product(by_load, reversed(by_load)):
            full, empty = self.loads[source][metric], self.loads[target][metric]
            if full > empty and (full > upper or empty < lower):
                yield source, target

    def hand_on(self, metric: int, only: Collection[Place] | None = None) -> bool:
        """Another replica leads, which moves no byte."""
        for source, target in self._pairs(metric):
            best, saving = None, SAVING_MIN
            for number in sorted(self._held[source]):
                place = self.places[number]
                replicas, held = self.now[place], self.partitions[place]
                if replicas[0] != source or target not in replicas or held.is_fixed:
                    continue
                if only is not None and place not in only:
                    continue
                extra = _difference(held.burden(0), held.burden(1))
                saved = self._saved(source, target, extra)
                if saved > saving:
                    best, saving = place, saved
            if best is not None:
                self.lay(best, _led_by(target, self.now[best]))
                return True
        return False

    def _saved(self, source: int, target: int, burden: Burden) -> float:
        """What it saves if this goes from the one to the other."""
        full, empty = self.loads[source], self.loads[target]
        return (
            self.cost(full)
            + self.cost(empty)
            - self.cost(_difference(full, burden))
            - self.cost(_sum(empty, burden))
        )

    def _shift(self, source: int, target: int) -> bool:
        """One replica goes from the one to the other."""
        best: Place | None = None
        key = (SAVING_MIN, 0.0)
        for place in self.movable(source, target, CANDIDATES_MAX):
            held = self.partitions[place]
            saved = self._saved(source, target, held.burden(self.now[place].index(source)))
            # Of those that save as much, the one with the fewest bytes.
            if (round(saved, 12), -held.size_bytes) > key:
                best, key = place, (round(saved, 12), -held.size_bytes)
        if best is None:
            return False
        self.move(best, source, target)
        return True

    def _swap(self, source: int, target: int) -> bool:
        """Two replicas change places, where one alone would do no good."""
        given = self.movable(source, target, SWAPPED_MAX)
        taken = self.movable(target, source, SWAPPED_MAX)
        best: tuple[Place, Place] | None = None
        saving = SAVING_MIN
        for there, back in product(given, taken):
            one = self.partitions[there].burden(self.now[there].index(source))
            other = self.partitions[back].burden(self.now[back].index(target))
            saved = self._saved(source, target, _difference(one, other))
            if saved > saving:
                best, saving = (there, back), saved
        if best is None:
            return False
        self.move(best[0], source, target)
        self.move(best[1], target, source)
        return True


def _band(metric: int, total: float, nodes: int, width: float) -> tuple[float, float, float]:
    """What a node may carry at least and at most, and the mean."""
    mean = total / max(1, nodes)
    if metric in (LEADERS, REPLICAS):
        lower, upper = min(mean * (1 - width / 2), math.floor(mean)), math.ceil(mean)
        return lower, max(mean * (1 + width / 2), upper), mean or 1.0
    slack = max(mean * width / 2, (BYTES_MIN if metric == BYTES else TRAFFIC_MIN) / 2)
    return mean - slack, mean + slack, mean or 1.0


def _sum(one: Burden, other: Burden) -> Burden:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])


def _difference(one: Burden, other: Burden) -> Burden:
    return (one[0] - other[0], one[1] - other[1], one[2] - other[2], one[3] - other[3])


def _led_by(node: int, replicas: Sequence[int]) -> tuple[int, ...]:
    """The one that leads and the one that is to lead change places."""
    swapped = {replicas[0]: node, node: replicas[0]}
    return tuple(swapped.get(each, each) for each in replicas)


# ------------------------------------------------------------------------------------ the steps


def _evacuate(board: _Board, *, may_share_racks: bool) -> list[Place]:
    """Replicas leave nodes that are leaving; those that cannot are returned, and stay."""
    stranded = []
    for place in board.places:
        before = board.now[place]
        for source in [node for node in before if node in board.leaving]:
            target = _refuge(board, place, source)
            if target is not None:
                board.move(place, source, target)
        is_out = board.leaving.isdisjoint(board.now[place])
        has_racks = len(board.racks(board.now[place])) >= len(board.racks(before))
        if not is_out or not (has_racks or may_share_racks):
            board.lay(place, before)
            stranded.append(place)
    return stranded


def _refuge(board: _Board, place: Place, source: int) -> int | None:
    """A rack that the partition is not in comes first, then whoever is least burdened by it."""
    replicas, held = board.now[place], board.partitions[place]
    if held.is_fixed:
        return None
    staying = [node for node in replicas if node not in board.leaving]
    racks, hosts = board.racks(staying), {board.host(node) for node in staying}
    burden = held.burden(replicas.index(source))

    def merit(node: int) -> tuple[bool, float, int]:
        load = board.loads[node]
        saved = board.cost(load) - board.cost(_sum(load, burden))
        return board.sites[node].rack not in racks, saved, -node

    free = [node for node in board.open if node not in replicas and board.host(node) not in hosts]
    return max(free, key=merit, default=None)


def _spread_racks(board: _Board) -> None:
    """Who has two replicas in one rack while another rack has none gets one there."""
    racks = board.racks(board.open)
    for place in board.places:
        wanted = min(len(racks), len(board.now[place]))
        while len(board.racks(board.now[place])) < wanted:
            move = _to_another_rack(board, place)
            if move is None:
                break
            board.move(place, *move)


def _to_another_rack(board: _Board, place: Place) -> tuple[int, int] | None:
    replicas = board.now[place]
    known = board.racks(replicas)
    doubled = [
        node
        for node in replicas
        if len(board.racks(other for other in replicas if other != node)) == len(known)
    ]
    moves = [
        (source, target)
        for source, target in product(doubled, board.open)
        if board.sites[target].rack not in known and board.may_move(place, source, target)
    ]

    def key(move: tuple[int, int]) -> tuple[bool, float, float, int]:
        """A follower goes, from the fullest node to the emptiest."""
        source, target = move
        full, empty = board.loads[source][REPLICAS], board.loads[target][REPLICAS]
        return source == replicas[0], -full, empty, target

    return min(moves, key=key, default=None)


def _even(board: _Board, steps_max: int | None) -> None:
    """Each step costs less than the one before, so there is a last one."""
    left = math.inf if steps_max is None else steps_max
    has_moved = True
    while has_moved:
        has_moved = False
        for metric in ORDER:
            while left > 0 and board.improve(metric):
                has_moved = True
                left -= 1


def _take_back(board: _Board) -> None:
    """Partitions stay where they were if that costs nothing; the largest are tried first."""
    has_moved = True
    while has_moved:
        has_moved = False
        changed = board.changed()
        for place in [each for each in board.places if each in changed]:
            before, after = board.partitions[place].replicas, board.now[place]
            must_go = not board.leaving.isdisjoint(before)
            if must_go or len(board.racks(before)) < len(board.racks(after)):
                continue
            cost = board.total_cost()
            board.lay(place, before)
            if board.total_cost() <= cost + SAVING_MIN:
                has_moved = True
            else:
                board.lay(place, after)
