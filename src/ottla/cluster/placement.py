"""Where the replicas of new partitions go: round robin over brokers, different racks first.

The brokers stand in a ring in which neighbours come from different racks. Leaders follow one
another around the ring, so they are spread evenly. The followers of a partition are found by
walking on from its leader: first brokers of racks that the partition is not on yet, then those of
other hosts. Replicas never share a host: they would be lost together. Each turn around the ring
begins the walk one step further, so that partitions with the same leader have different followers,
and the load of a lost broker is spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

from ottla.cluster.image import BrokerImage
from ottla.errors import InvalidReplicationFactor
from ottla.ports import Random

T = TypeVar("T")


class Host(NamedTuple):
    """What the brokers of one host have in common, as they register it."""

    rack: str | None
    names: frozenset[str]
    # Of a broker whose host nobody can tell, itself.
    alone: int | None = None


class Candidate(NamedTuple):
    """A broker that may get replicas."""

    id: int
    rack: str | None
    host: Host


def host_of(broker: BrokerImage) -> Host:
    """Brokers share a host that are in one rack and are reached by the same names.

    Addresses alone do not tell: through one gateway clients may reach brokers of many hosts. A
    broker without a rack says nothing of where it stands, as those of a cluster for trying out.
    """
    names = frozenset(endpoint.host for endpoint in broker.endpoints.values())
    if broker.rack is None or not names:
        return Host(broker.rack, names, broker.id)
    return Host(broker.rack, names)


def candidate(broker: BrokerImage) -> Candidate:
    return Candidate(broker.id, broker.rack, host_of(broker))


def place(
    candidates: Sequence[Candidate], partitions: int, replication_factor: int, random: Random
) -> list[tuple[int, ...]]:
    """The replicas of each partition, its leader first."""
    if replication_factor < 1:
        raise InvalidReplicationFactor("Replication factor must be larger than 0.")
    if replication_factor > len(candidates):
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): "
            f"only {len(candidates)} broker(s) are available."
        )
    hosts = len({broker.host for broker in candidates})
    if replication_factor > hosts:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): the "
            f"{len(candidates)} brokers that are available are on {hosts} host(s), and replicas "
            "of a partition never share one."
        )
    ring = _ring(candidates, random)
    start = random.below(len(ring))
    shift = random.below(len(ring))
    return [
        _replicas(ring, start + index, shift + index // len(ring), replication_factor)
        for index in range(partitions)
    ]


def _ring(candidates: Iterable[Candidate], random: Random) -> list[Candidate]:
    racks: dict[str | None, list[Candidate]] = {}
    for broker in sorted(candidates, key=lambda broker: broker.id):
        racks.setdefault(broker.rack, []).append(broker)
    names = sorted(racks, key=lambda rack: (rack is not None, rack or ""))
    columns = [_rotated(racks[name], random) for name in names]
    rows = zip_longest(*columns)
    return [broker for broker in chain.from_iterable(rows) if broker is not None]


def _rotated(items: list[T], random: Random) -> list[T]:
    first = random.below(len(items))
    return items[first:] + items[:first]


def _replicas(ring: list[Candidate], leader_at: int, shift: int, wanted: int) -> tuple[int, ...]:
    size = len(ring)
    leader = ring[leader_at % size]
    chosen = [leader]
    if wanted > 1:
        others = size - 1
        walk = [ring[(leader_at + 1 + (shift + step) % others) % size] for step in range(others)]
        racks, hosts = {leader.rack}, {leader.host}
        neighbours = []
        for broker in walk:
            if broker.rack in racks:
                neighbours.append(broker)
            else:
                racks.add(broker.rack)
                hosts.add(broker.host)
                chosen.append(broker)
        for broker in neighbours:
            if broker.host not in hosts:
                hosts.add(broker.host)
                chosen.append(broker)
    return tuple(broker.id for broker in chosen[:wanted])
