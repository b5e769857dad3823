"""Where the replicas of a partition are to be: the way there, its end, and the way back (KIP-455).

While a partition moves, all are replicas who were, and all who are to be. It has arrived when
everybody who stays is in sync; only then those go who do not stay. Who was a replica before the
first of several moves is remembered by who was not: cancelling the last goes back to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.cluster.directories import UNASSIGNED_DIRECTORY, default_directory
from ottla.cluster.image import NOT_MOVING, BrokerImage, MetadataImage, Moving, PartitionImage
from ottla.cluster.placement import Host, host_of
from ottla.errors import InvalidReplicaAssignment

NO_BROKERS: Final[Mapping[int, BrokerImage]] = MappingProxyType({})


class Route(NamedTuple):
    """The replicas of a partition, and which of them come and go."""

    replicas: tuple[int, ...]
    moving: Moving = NOT_MOVING

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.moving.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.moving.adding)

    def arrived(self, isr: Collection[int]) -> Route | None:
        """The end of the way, if all who stay are in sync."""
        if self.moving == NOT_MOVING or not set(self.target) <= set(isr):
            return None
        return Route(self.target)


def route_of(partition: PartitionImage) -> Route:
    return Route(partition.replicas, partition.moving)


def route_to(partition: PartitionImage, target: Sequence[int]) -> Route:
    """The replicas while the partition moves there, from wherever it is on its way now."""
    origin = route_of(partition).origin
    leaving = [node for node in partition.replicas if node not in target]
    everybody = (*target, *leaving)
    adding = sorted(node for node in everybody if node not in origin)
    return Route(everybody, Moving(tuple(adding), tuple(sorted(leaving))))


def way_back(partition: PartitionImage) -> Route:
    return Route(route_of(partition).origin)


def moved(
    partition: PartitionImage, route: Route, brokers: Mapping[int, BrokerImage] = NO_BROKERS
) -> PartitionImage:
    """The partition with these replicas; who is new lies where its broker puts it."""
    if route == route_of(partition):
        return partition
    known = dict(zip(partition.replicas, partition.directories, strict=False))
    directories = []
    for node in route.replicas:
        place = known.get(node)
        if place is None:
            broker = brokers.get(node)
            place = UNASSIGNED_DIRECTORY if broker is None else default_directory(broker)
        directories.append(place)
    return partition._replace(
        replicas=route.replicas, moving=route.moving, directories=tuple(directories)
    )


def check_target(image: MetadataImage, replicas: Sequence[int]) -> None:
    """Whether these can be a partition's replicas: registered brokers of different hosts."""
    if not replicas:
        raise InvalidReplicaAssignment("A partition is assigned to no broker.")
    for broker in replicas:
        if broker not in image.brokers:
            raise InvalidReplicaAssignment(f"There is no broker {broker}.")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"A broker is named twice in {list(replicas)}.")
    hosts: dict[Host, int] = {}
    for broker in replicas:
        other = hosts.setdefault(host_of(image.brokers[broker]), broker)
        if other != broker:
            raise InvalidReplicaAssignment(
                f"The brokers {other} and {broker} are on one host; replicas of a partition "
                "never share one."
            )
