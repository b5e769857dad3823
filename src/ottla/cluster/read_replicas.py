"""From which replica a consumer reads best: one in its own rack (KIP-392).

As Kafka's RackAwareReplicaSelector: the leader if it stands there or nobody does, otherwise whoever
has come furthest of those that are in sync and have what is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.cluster.replicas import ReplicaSet
from ottla.types import NodeId


def nearer_replica(
    replicas: ReplicaSet, racks: Mapping[int, str | None], rack: str, offset: int
) -> NodeId | None:
    """The follower in this rack to read from `offset` on; None when the leader is to be read.

    `racks` names the brokers that the consumer can reach.
    """
    if racks.get(replicas.own) == rack:
        return None
    there = [
        (progress.end_offset, progress.caught_up_ms, replica)
        for replica, progress in replicas.progress().items()
        if racks.get(replica) == rack
        and replica in replicas.isr
        and progress.start_offset <= offset <= progress.end_offset
    ]
    return NodeId(max(there)[-1]) if there else None
