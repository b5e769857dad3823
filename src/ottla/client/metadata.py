"""What is known of a cluster: its brokers, and the leaders of its partitions. No IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.client.failures import refusal
from ottla.client.settings import join_address
from ottla.client.values import TopicInfo
from ottla.errors import ErrorCode
from ottla.types import NO_NODE, NO_TOPIC_ID, LeaderEpoch, NodeId, TopicId, TopicPartition
from ottla.wire.messages.metadata import MetadataResponse, MetadataResponseTopic


class _Leader(NamedTuple):
    node_id: NodeId
    epoch: LeaderEpoch


class Image:
    """Folds the answers to Metadata requests."""

    def __init__(self) -> None:
        self.addresses: dict[NodeId, str] = {}
        self._leaders: dict[TopicPartition, _Leader] = {}
        self._topic_ids: dict[str, TopicId] = {}

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        """None when it has no leader, or one that is not among the known brokers."""
        leader = self._leaders.get(partition)
        if leader is None or leader.node_id not in self.addresses:
            return None
        return leader.node_id

    def topic_id(self, topic: str) -> TopicId:
        return self._topic_ids.get(topic, NO_TOPIC_ID)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Their leader has changed or is gone: the next request looks it up again."""
        for partition in partitions:
            self._leaders.pop(partition, None)

    def fold(self, reply: MetadataResponse) -> dict[str, TopicInfo]:
        """Takes in an answer; returns its topics, without those that do not exist.

        Raises what the brokers say about a topic otherwise.
        """
        self.addresses = {
            NodeId(broker.node_id): join_address(broker.host, broker.port)
            for broker in reply.brokers
        }
        if reply.error_code:
            raise refusal(reply.error_code, "the cluster's metadata")
        found = {}
        for topic in reply.topics:
            name = topic.name or ""
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._forget_topic(name)
                continue
            if topic.error_code:
                raise refusal(topic.error_code, f"topic {name!r}")
            found[name] = self._fold_topic(name, topic)
        return found

    def _fold_topic(self, name: str, topic: MetadataResponseTopic) -> TopicInfo:
        if self._topic_ids.get(name, topic.topic_id) != topic.topic_id:
            self._forget_topic(name)
        topic_id = self._topic_ids[name] = TopicId(topic.topic_id)
        for partition in topic.partitions:
            key = TopicPartition(name, partition.partition_index)
            if partition.leader_id == NO_NODE:
                self._leaders.pop(key, None)
                continue
            known = self._leaders.get(key)
            # A broker that lags may still name the leader before this one.
            if known is None or partition.leader_epoch >= known.epoch:
                self._leaders[key] = _Leader(
                    NodeId(partition.leader_id), LeaderEpoch(partition.leader_epoch)
                )
        numbers = tuple(sorted(partition.partition_index for partition in topic.partitions))
        return TopicInfo(name, topic_id, numbers, topic.is_internal)

    def _forget_topic(self, name: str) -> None:
        self._topic_ids.pop(name, None)
        self.forget([partition for partition in self._leaders if partition.topic == name])
