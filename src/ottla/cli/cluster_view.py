"""How a cluster is, asked of any of its brokers over the protocol."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ottla.cli.failures import CommandFailed
from ottla.client.connection import Connection
from ottla.client.failures import ClientFailed
from ottla.client.settings import ClientSettings
from ottla.types import METADATA_TOPIC, NO_NODE
from ottla.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumPartitionResult,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
)
from ottla.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
)

ANSWER_S_MAX: Final = 10.0
# A kind of resource in DescribeConfigs.
TOPIC: Final = 2
MINIMUM: Final = "min.insync.replicas"


class View(NamedTuple):
    cluster: DescribeClusterResponse
    metadata: MetadataResponse
    quorum: DescribeQuorumPartitionResult
    minimums: dict[str, int]
    """min.insync.replicas of the topics that lack replicas."""


def look(bootstrap: str) -> dict[str, Any]:
    """The whole and its nodes; CommandFailed where none of the addresses answers."""
    view = asyncio.run(_ask_any([text.strip() for text in bootstrap.split(",") if text.strip()]))
    partitions = list(_partitions(view.metadata))
    return {
        "cluster_id": view.cluster.cluster_id,
        "controller": None if view.quorum.leader_id == NO_NODE else view.quorum.leader_id,
        "partitions": len(partitions),
        "offline": sum(partition.leader_id == NO_NODE for partition in partitions),
        "under_replicated": sum(map(_lacks_replicas, partitions)),
        "under_min_isr": sum(_refuse_writes(view)),
        "nodes": _rows(view, partitions),
    }


async def _ask_any(addresses: Sequence[str]) -> View:
    reason = "no address was given"
    for address in addresses:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await _ask(address)
        except TimeoutError:
            reason = f"{address} does not answer in {ANSWER_S_MAX:g} s"
        except (ClientFailed, OSError) as error:
            reason = f"{address}: {error}"
    raise CommandFailed(f"The cluster cannot be asked: {reason}.")


async def _ask(address: str) -> View:
    connection = await Connection.open(address, ClientSettings((), "ottla-cli"))
    try:
        cluster = await connection.ask(
            DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse
        )
        metadata = await connection.ask(
            MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse
        )
        topic = DescribeQuorumTopic(METADATA_TOPIC, [DescribeQuorumPartition(0)])
        quorum = await connection.ask(DescribeQuorumRequest([topic]), DescribeQuorumResponse)
        minimums = await _minimums(connection, metadata)
    finally:
        connection.abort("all is said")
    results = [each for topic in quorum.topics for each in topic.partitions]
    # Nobody may lead just now, and a Kafka may forbid the question.
    unknown = DescribeQuorumPartitionResult(leader_id=NO_NODE)
    return View(cluster, metadata, results[0] if results else unknown, minimums)


async def _minimums(connection: Connection, metadata: MetadataResponse) -> dict[str, int]:
    lacking = [each.name for each in metadata.topics if any(map(_lacks_replicas, each.partitions))]
    wanted = [DescribeConfigsResource(TOPIC, name, [MINIMUM]) for name in lacking if name]
    if not wanted:
        return {}
    told = await connection.ask(DescribeConfigsRequest(wanted), DescribeConfigsResponse)
    return {
        result.resource_name: int(config.value or 0)
        for result in told.results
        for config in result.configs
        if config.name == MINIMUM
    }


def _refuse_writes(view: View) -> Iterator[bool]:
    """By partition with a leader whether acks=all is refused; without one, all is."""
    for topic in view.metadata.topics:
        minimum = view.minimums.get(topic.name or "", 0)
        for partition in topic.partitions:
            # As at the leader: more than there are replicas is not asked for.
            needed = min(minimum, len(partition.replica_nodes))
            yield partition.leader_id != NO_NODE and len(partition.isr_nodes) < needed


def _partitions(metadata: MetadataResponse) -> Iterator[MetadataResponsePartition]:
    for topic in metadata.topics:
        yield from topic.partitions


def _lacks_replicas(partition: MetadataResponsePartition) -> bool:
    return len(partition.isr_nodes) < len(partition.replica_nodes)


def _rows(view: View, partitions: Sequence[MetadataResponsePartition]) -> list[dict[str, Any]]:
    led = Counter(each.leader_id for each in partitions)
    held = Counter(node for each in partitions for node in each.replica_nodes)
    lacking = Counter(
        node
        for each in partitions
        for node in each.replica_nodes
        if node not in each.isr_nodes and each.leader_id != NO_NODE
    )
    voters = {voter.replica_id: voter.log_end_offset for voter in view.quorum.current_voters}
    ends = {each.replica_id: each.log_end_offset for each in view.quorum.observers} | voters
    brokers = {broker.broker_id: broker for broker in view.cluster.brokers}
    rows = []
    for node_id in sorted({*brokers, *voters}):
        broker, end = brokers.get(node_id), ends.get(node_id, -1)
        is_known = end >= 0 and view.quorum.high_watermark >= 0
        rows.append(
            {
                "node_id": node_id,
                "address": None if broker is None else f"{broker.host}:{broker.port}",
                "rack": None if broker is None else broker.rack,
                "role": _role(node_id, voters, view.quorum.leader_id, is_broker=broker is not None),
                "state": _state(broker),
                "leaders": led[node_id],
                "replicas": held[node_id],
                "out_of_sync": lacking[node_id],
                "metadata_lag": max(0, view.quorum.high_watermark - end) if is_known else None,
            }
        )
    return rows


def _role(node_id: int, voters: dict[int, int], leader_id: int, *, is_broker: bool) -> str:
    if node_id == leader_id:
        return "controller"
    if node_id in voters:
        return "voter"
    return "broker" if is_broker else "controller"


def _state(broker: Any) -> str | None:
    """Of a controller alone nobody tells whether it runs; its lag does."""
    if broker is None:
        return None
    return "fenced" if broker.is_fenced else "serving"
