"""Why a node says that it is not ready."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.metrics.readiness import Unready, why_not_ready
from ottla.types import NodeId
from unit.cluster.conftest import Cluster

OWN = 1


@pytest.fixture
def node() -> Any:
    """Node 1 of three, with the metadata that a controller has decided."""
    cluster = Cluster(brokers=3)
    cluster.create("t", partitions=-1, factor=-1, assignments={0: [2, 1], 1: [3, 2]})
    services = SimpleNamespace(
        is_serving=True,
        config=cluster.config,
        node_id=OWN,
        metadata=cluster.cache,
        quorum=SimpleNamespace(leader_id=2),
        partitions=SimpleNamespace(failing=list),
        stores=SimpleNamespace(online=list),
    )
    return SimpleNamespace(cluster=cluster, services=services, image=cluster.cache.image)


def change(node: Any, **fields: Any) -> None:
    topic = node.image.topics_by_name["t"]
    topic.partitions[0] = topic.partitions[0]._replace(**fields)
    node.cluster.cache._kept_for_image.clear()


def test_a_node_that_has_everything_is_ready(node: Any) -> None:
    assert why_not_ready(node.services) is None


def test_a_node_that_starts_is_not(node: Any) -> None:
    node.services.is_serving = False
    unready = why_not_ready(node.services)
    assert unready is not None
    assert unready.status == "starting"


def test_a_replica_that_is_not_in_sync_is_told_unless_a_move_begins_it(node: Any) -> None:
    change(node, isr=(2,))
    assert why_not_ready(node.services) == Unready("catching up", ["t-0 is not in sync"])
    moving = node.image.topics_by_name["t"].partitions[0].moving
    change(node, moving=moving._replace(adding=(OWN,)))
    assert why_not_ready(node.services) is None
    change(node, moving=moving, leader=-1)
    assert why_not_ready(node.services) is None, "there is nobody to catch up with"


def test_a_fenced_node_says_by_whom(node: Any) -> None:
    node.cluster.cache.set_absent_leader(NodeId(OWN))
    unready = why_not_ready(node.services)
    assert unready is not None
    assert (unready.status, "does not answer" in unready.reasons[0]) == ("fenced", True)
    node.image.brokers[OWN] = node.image.brokers[OWN]._replace(is_fenced=True)
    unready = why_not_ready(node.services)
    assert unready is not None
    assert "does not count on this node" in unready.reasons[0]
