"""What tests of moving partitions ask a cluster, beside what librdkafka can."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client.blocking import Blocking
from ottla.client.settings import ClientSettings
from ottla.errors import ErrorCode
from ottla.testing import Cluster
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.schema import Message
from raw_client import RawClient
from scenarios.polling import until

R = TypeVar("R", bound=Message)
TIMEOUT_S = 30.0
PAUSE_S = 0.05
RETRIABLE = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)


def ask(cluster: Cluster, request: Message, kind: type[R]) -> R:
    """The answer of a controller; after a death there is none for a moment."""
    deadline = time.monotonic() + TIMEOUT_S
    with Blocking(ClientSettings.from_kafka({"bootstrap.servers": cluster.bootstrap})) as client:
        while True:
            reply = client.run(lambda it: it.ask_any(request, kind), TIMEOUT_S)
            code: int = getattr(reply, "error_code", 0)
            if code not in RETRIABLE or time.monotonic() > deadline:
                return reply
            time.sleep(PAUSE_S)


def create(
    cluster: Cluster, topic: str, replicas: Sequence[Sequence[int]], **settings: str
) -> None:
    """A topic whose partitions lie on these nodes, and of which every node has heard."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    assignment = [list(each) for each in replicas]
    new = NewTopic(topic, len(assignment), replica_assignment=assignment, config=config)
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    for node in cluster.nodes.values():
        if node.is_running and node.settings.get("process.roles") != "controller":
            with RawClient(node.bootstrap) as client:
                until(lambda: _knows(client, topic), f"a node does not hear of {topic}")


def _knows(client: RawClient, topic: str) -> bool:
    request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return client.ask(request, 12).topics[0].error_code == ErrorCode.NONE


def move(cluster: Cluster, topic: str, replicas: Mapping[int, Sequence[int] | None]) -> list[int]:
    """By partition the error of the answer; None cancels."""
    partitions = [
        ReassignablePartition(index, None if nodes is None else list(nodes))
        for index, nodes in replicas.items()
    ]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(topic, partitions)])
    response = ask(cluster, request, AlterPartitionReassignmentsResponse)
    assert response.error_code == 0, response.error_message
    return [answer.error_code for answer in response.responses[0].partitions]


def moving(cluster: Cluster, topic: str) -> list[int]:
    """The partitions of the topic that are on their way."""
    request = ListPartitionReassignmentsRequest(topics=None)
    response = ask(cluster, request, ListPartitionReassignmentsResponse)
    assert response.error_code == 0, response.error_message
    return [
        partition.partition_index
        for listed in response.topics
        if listed.name == topic
        for partition in listed.partitions
    ]


def replicas_of(cluster: Cluster, topic: str) -> dict[int, tuple[list[int], list[int]]]:
    """By partition its replicas in order, and those of them that are in sync, sorted."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return {
        index: (list(partition.replicas), sorted(partition.isrs))
        for index, partition in partitions.items()
    }
