"""What the nodes of a cluster carry, as far as the protocol tells: so of Kafka's, too."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ottla.cli.move_plan import Move, Place
from ottla.cli.mover import Mover, Node, Ongoing, Seen
from ottla.cluster.balance import Held, Site
from ottla.types import NO_NODE

SAMPLE_S: Final = 5.0


class Carried(NamedTuple):
    nodes: dict[int, Node]
    partitions: dict[Place, Held]
    moving: dict[Place, Ongoing]
    drained: set[int]

    @property
    def sites(self) -> list[Site]:
        return [site_of(node) for node in self.nodes.values()]

    @property
    def fenced(self) -> set[int]:
        return {node.id for node in self.nodes.values() if node.is_fenced}

    def held_by(self, node_id: int) -> list[Place]:
        """What lies there, or would when all that moves has arrived."""
        return sorted(at for at, held in self.partitions.items() if node_id in held.replicas)

    def moves(self, after: Mapping[Place, tuple[int, ...]]) -> list[Move]:
        return [
            Move(place, self.partitions[place].replicas, replicas)
            for place, replicas in sorted(after.items())
        ]

    def sizes(self) -> dict[Place, int]:
        return {place: held.size_bytes for place, held in self.partitions.items()}


def site_of(node: Node) -> Site:
    """Only nodes that say where they stand can be known to be on one host, as for the broker."""
    return Site(node.id, node.rack, None if node.rack is None else node.host)


def look(mover: Mover, sample_s: float = 0.0) -> Carried:
    """With `sample_s`, traffic is what the partitions grow by in that time."""
    nodes, drained = mover.nodes(), mover.drained()
    seen, moving = mover.look()[0], mover.moving()
    serving = [node.id for node in nodes.values() if not node.is_fenced]
    sizes, begun_s = mover.sizes(serving), time.monotonic()
    rates: dict[Place, float] = {}
    if sample_s:
        time.sleep(sample_s)
        later, passed_s = mover.sizes(serving), time.monotonic() - begun_s
        rates = {at: max(0, later.get(at, 0) - size) / passed_s for at, size in sizes.items()}
        sizes = later
    partitions = {
        place: held_as(each, moving.get(place), sizes.get(place, 0), rates.get(place, 0.0))
        for place, each in seen.items()
    }
    return Carried(nodes, partitions, moving, drained)


def held_as(seen: Seen, ongoing: Ongoing | None, size_bytes: int, rate: float) -> Held:
    """What is on its way is where it is going; what nobody leads, nobody can give away."""
    leaving = () if ongoing is None else ongoing.removing
    replicas = tuple(node for node in seen.replicas if node not in leaving)
    return Held(replicas, size_bytes, rate, is_fixed=ongoing is not None or seen.leader == NO_NODE)


def after(
    partitions: Mapping[Place, Held], changes: Mapping[Place, tuple[int, ...]]
) -> dict[Place, Held]:
    return {
        place: held._replace(replicas=changes.get(place, held.replicas))
        for place, held in partitions.items()
    }


def rows(
    nodes: Collection[int], before: Mapping[Place, Held], later: Mapping[Place, Held]
) -> list[dict[str, Any]]:
    """What each node carries, now and then."""
    now, then = _totals(nodes, before), _totals(nodes, later)
    return [
        {
            "node": node,
            **{
                name: _change(first, last)
                for name, first, last in zip(COLUMNS, now[node], then[node], strict=True)
            },
        }
        for node in nodes
    ]


COLUMNS: Final = ("leaders", "replicas", "bytes", "bytes_per_second")


def _totals(nodes: Collection[int], partitions: Mapping[Place, Held]) -> dict[int, Sequence[int]]:
    totals = {node: [0.0] * len(COLUMNS) for node in nodes}
    for held in partitions.values():
        for position, node in enumerate(held.replicas):
            if node in totals:
                burden = held.burden(position)
                totals[node] = [a + b for a, b in zip(totals[node], burden, strict=True)]
    return {node: [round(each) for each in carried] for node, carried in totals.items()}


def _change(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} → {last}"
