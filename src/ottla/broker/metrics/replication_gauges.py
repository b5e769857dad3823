"""How well partitions are replicated, as their leaders see it; read off at every scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.counters import Metrics
from ottla.ports import Clock
from ottla.types import NO_NODE

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.replication.throttles import Throttles
    from ottla.broker.storage.partition import Partition


def register_replication_gauges(
    metrics: Metrics,
    partitions: Iterable[Partition],
    metadata: MetadataCache,
    throttles: Throttles,
    clock: Clock,
) -> None:
    def under_replicated() -> int:
        sets = (partition.replicas for partition in partitions)
        return sum(each is not None and len(each.isr) < len(each.replicas) for each in sets)

    def follower_lag() -> Iterator[tuple[tuple[str, ...], int]]:
        total: Counter[int] = Counter()
        for partition in partitions:
            total.update(partition.lags())
        for node_id, lag in sorted(total.items()):
            yield (str(node_id),), lag

    def follower_lag_s() -> Iterator[tuple[tuple[str, ...], float]]:
        now_ms = clock.now().steady_ms
        longest: dict[int, int] = {}
        for partition in partitions:
            for node_id, lag_ms in partition.lags_ms(now_ms).items():
                longest[node_id] = max(lag_ms, longest.get(node_id, 0))
        for node_id, lag_ms in sorted(longest.items()):
            yield (str(node_id),), lag_ms / 1000

    def offline() -> int:
        return metadata.kept_for_image("partitions without a leader", lambda: _leaderless(metadata))

    metrics.gauge(
        "ottla_follower_lag",
        "Messages of partitions that this node leads and that a follower has not copied yet.",
        follower_lag,
        ("node",),
    )
    for direction, by, rate in (
        ("in", "copied here", throttles.follower),
        ("out", "sent from here", throttles.leader),
    ):
        metrics.count(
            f"ottla_newcomers_bytes_{direction}_total",
            f"Bytes that were {by} for replicas that were not in sync: those of partitions that "
            "move, or of nodes that were away.",
            partial(getattr, rate, "bytes"),
        )
    metrics.gauge(
        "ottla_follower_lag_seconds",
        "For how long a follower has lacked something of a partition that this node leads.",
        follower_lag_s,
        ("node",),
    )
    for name, help, read in (
        (
            "ottla_partitions_led",
            "Partitions that this node leads.",
            lambda: sum(partition.is_leader for partition in partitions),
        ),
        (
            "ottla_partitions_under_replicated",
            "Partitions that this node leads and of which not all replicas are in sync.",
            under_replicated,
        ),
        (
            "ottla_partitions_under_min_isr",
            "Partitions that this node leads with fewer replicas in sync than "
            "min.insync.replicas: acks=all is refused.",
            lambda: sum(not partition.has_min_isr for partition in partitions),
        ),
        (
            "ottla_partitions_offline",
            "Partitions of the whole cluster that have no leader, as far as this node knows.",
            offline,
        ),
        (
            "ottla_follower_lag_max",
            "Messages that the slowest follower has not copied yet of one partition that this "
            "node leads.",
            lambda: max((max(p.lags().values(), default=0) for p in partitions), default=0),
        ),
    ):
        metrics.value(name, help, read)


def _leaderless(metadata: MetadataCache) -> int:
    return sum(
        partition.leader == NO_NODE
        for topic in metadata.image.topics_by_id.values()
        for partition in topic.partitions.values()
    )
