"""Which replica a consumer is sent to."""

from __future__ import annotations

import pytest

from ottla.cluster.read_replicas import nearer_replica
from ottla.cluster.replicas import ReplicaSet
from ottla.types import NodeId, Offset

LEADER = NodeId(1)
RACKS = {1: "a", 2: "b", 3: "b", 4: "c", 5: None}


def replicas(isr: tuple[int, ...] = (1, 2, 3, 4, 5)) -> ReplicaSet:
    """Followers 2 and 3 stand together; 3 has come further, and begins later."""
    known = ReplicaSet(LEADER, (1, 2, 3, 4, 5), isr, 0, 0)
    for replica, offset, start in ((2, 10, 0), (3, 12, 5), (4, 8, 0), (5, 12, 0)):
        assert known.fetched(replica, 1, Offset(offset), Offset(12), 0, start)
    return known


@pytest.mark.parametrize(
    ("rack", "offset", "expected"),
    [
        ("a", 6, None),
        ("b", 6, 3),
        ("b", 3, 2),
        ("b", 11, 3),
        ("b", 13, None),
        ("c", 8, 4),
        ("c", 9, None),
        ("nowhere", 6, None),
    ],
)
def test_the_furthest_in_the_rack_that_has_the_offset(
    rack: str, offset: int, expected: int | None
) -> None:
    assert nearer_replica(replicas(), RACKS, rack, offset) == expected


def test_who_is_not_in_sync_is_not_read_from() -> None:
    assert nearer_replica(replicas(isr=(1, 2)), RACKS, "b", 6) == 2
    assert nearer_replica(replicas(isr=(1,)), RACKS, "b", 6) is None


def test_who_cannot_be_reached_is_not_read_from() -> None:
    reachable = {node: rack for node, rack in RACKS.items() if node != 3}
    assert nearer_replica(replicas(), reachable, "b", 6) == 2
