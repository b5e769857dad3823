"""Why this node is not ready: it is starting, fenced, catching up, or its disks refuse writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.directories import lies_offline
from ottla.types import NO_NODE

if TYPE_CHECKING:
    from ottla.broker.services import Services

REASONS_MAX: Final = 10


class Unready(NamedTuple):
    status: str
    reasons: list[str]


def why_not_ready(services: Services) -> Unready | None:
    """None for a node that is ready. The first trouble is told."""
    if not services.is_serving:
        return Unready("starting", ["the node is not part of its cluster yet"])
    return _membership(services) or _storage(services) or _catching_up(services)


def _membership(services: Services) -> Unready | None:
    if not services.config.is_broker:
        if services.quorum.leader_id == NO_NODE:
            return Unready("no controller", ["nobody leads the metadata log"])
        return None
    own = services.metadata.image.brokers.get(services.node_id)
    if own is None or own.is_fenced:
        return Unready("fenced", ["the controller does not count on this node (yet)"])
    if services.metadata.absent_leader == services.node_id:
        return Unready("fenced", ["the controller does not answer, so that nothing is led here"])
    return None


def _storage(services: Services) -> Unready | None:
    failing = services.partitions.failing()
    reasons = [f"{store.path} is full" for store in services.stores.online() if store.is_full]
    if not failing and not reasons:
        return None
    reasons += [f"{partition.name}: {partition.failure}" for partition in failing[:REASONS_MAX]]
    return Unready("storage failing", reasons)


def _catching_up(services: Services) -> Unready | None:
    lacking = services.metadata.kept_for_image(
        "partitions to catch up with", lambda: list(_out_of_sync(services))
    )
    if not lacking:
        return None
    rest = len(lacking) - REASONS_MAX
    more = [f"and {rest} more"] if rest > 0 else []
    told = [f"{name} is not in sync" for name in lacking[:REASONS_MAX]]
    return Unready("catching up", [*told, *more])


def _out_of_sync(services: Services) -> Iterator[str]:
    """Of what has a leader. Copies that a move begins here are extra, and may take long."""
    image, node_id = services.metadata.image, services.node_id
    own = image.brokers.get(node_id)
    for topic in image.topics_by_id.values():
        for index, partition in topic.partitions.items():
            if (
                node_id in partition.replicas
                and node_id not in partition.isr
                and partition.leader != NO_NODE
                and node_id not in partition.moving.adding
                and not (own is not None and lies_offline(own, partition))
            ):
                yield f"{topic.name}-{index}"
