"""Partitions for tests: what `broker.main` would open and give a role."""

from __future__ import annotations

from typing import Any

from ottla.broker.counters import TopicMetrics
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.config import TopicConfig
from ottla.log.log import Log
from ottla.types import LeaderEpoch, NodeId, TopicId, TopicPartition

OWN = NodeId(1)


def lone_leader(
    name: TopicPartition,
    topic_id: bytes,
    log: Log,
    epoch: int,
    config: TopicConfig,
    flusher: Any,
    metrics: TopicMetrics,
    home: Home,
) -> Partition:
    """Leads, and has no other replica."""
    leader_epoch = LeaderEpoch(epoch)
    partition = Partition(
        name, TopicId(topic_id), log, leader_epoch, config, flusher, metrics, home, OWN
    )
    partition.lead(leader_epoch, (OWN,), (OWN,), 0, 0)
    return partition
