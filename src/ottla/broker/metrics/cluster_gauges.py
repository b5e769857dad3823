"""The cluster as this node sees it: who decides, who is there, how far its metadata has come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ottla.broker.control.metadata import Change, LeaderChanged
from ottla.broker.counters import Metrics
from ottla.broker.services import Services
from ottla.gateway.prometheus import Sample
from ottla.types import NO_NODE

CLEAN: Final = "clean"
UNCLEAN: Final = "unclean"


class _Elections:
    """Counts who was elected; an unclean election may have lost messages."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._counts = {CLEAN: 0, UNCLEAN: 0}

    def see(self, changes: Sequence[Change]) -> None:
        # What a start reads of the past is no news.
        if not self._services.is_serving:
            return
        for change in changes:
            if isinstance(change, LeaderChanged) and change.partition.leader != NO_NODE:
                is_unclean = change.partition.recovery.is_recovering
                self._counts[UNCLEAN if is_unclean else CLEAN] += 1

    def samples(self) -> Iterator[Sample]:
        return (((kind,), count) for kind, count in self._counts.items())


class _ControllerChanges:
    def __init__(self, services: Services) -> None:
        self._quorum = services.quorum
        self._last = NO_NODE
        self.count = 0

    def see(self) -> None:
        leader_id = self._quorum.leader_id
        if leader_id not in (NO_NODE, self._last):
            self.count += self._last != NO_NODE
            self._last = leader_id


def register_cluster_gauges(metrics: Metrics, services: Services) -> None:
    elections, controllers = _Elections(services), _ControllerChanges(services)
    services.metadata.on_change(elections.see)
    services.quorum.on_leader_change(controllers.see)
    metrics.gauge(
        "ottla_leader_elections_total",
        "Elections of partition leaders in the whole cluster that this node has heard of; an "
        "unclean one may have lost messages.",
        elections.samples,
        ("kind",),
        kind="counter",
    )
    metrics.count(
        "ottla_controller_changes_total",
        "How often this node has seen another node become the controller.",
        lambda: controllers.count,
    )
    _register_brokers(metrics, services)
    _register_metadata(metrics, services)


def _register_brokers(metrics: Metrics, services: Services) -> None:
    metadata = services.metadata

    def fenced() -> int:
        return sum(broker.is_fenced for broker in metadata.image.brokers.values())

    for name, help, read in (
        (
            "ottla_brokers",
            "Brokers that are registered, as far as this node knows.",
            lambda: len(metadata.image.brokers),
        ),
        (
            "ottla_brokers_fenced",
            "Brokers that are registered and do not serve, as far as this node knows.",
            fenced,
        ),
        (
            "ottla_fenced",
            "1 while this node may not lead: it is fenced, or does not reach the controller.",
            lambda: int(metadata.absent_leader == services.node_id),
        ),
    ):
        metrics.value(name, help, read)


def _register_metadata(metrics: Metrics, services: Services) -> None:
    quorum, controller = services.quorum, services.controller

    def lags() -> Iterator[Sample]:
        """Only the controller knows how far the others are."""
        if quorum.is_leader:
            end_offset = quorum.partition.end_offset
            described = quorum.describe()
            for replica in (*described.voters, *described.observers):
                yield (str(replica.key.id),), end_offset - max(0, replica.log_end_offset)

    metrics.gauge(
        "ottla_metadata_follower_lag",
        "Records of the metadata log that a node has not fetched yet; told by the controller.",
        lags,
        ("node",),
    )
    for name, help, read in (
        (
            "ottla_is_controller",
            "1 on the node that leads the metadata log.",
            lambda: int(quorum.is_leader),
        ),
        (
            "ottla_controller_epoch",
            "The epoch of the metadata log's leader.",
            lambda: quorum.leader_epoch,
        ),
        (
            "ottla_controller_queue",
            "Decisions of this controller that wait to be committed.",
            lambda: controller.waiting,
        ),
        (
            "ottla_metadata_lag",
            "Committed records of the metadata log that this node has not taken in yet.",
            lambda: max(0, quorum.high_watermark - controller.published_offset),
        ),
    ):
        metrics.value(name, help, read)
