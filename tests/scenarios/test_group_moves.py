"""Groups follow the leaders of the offsets topic's partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.errors import ErrorCode
from ottla.types import OFFSETS_TOPIC
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.metadata_records import PartitionChangeRecord
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from raw_client import RawClient
from scenarios.in_process import BrokerInside

GROUP = "g"
ANOTHER_NODE = 2


async def led_by(inside: BrokerInside, leader: int) -> None:
    """As if the controller had committed it."""
    services = inside.node._services
    topic = services.metadata.topic(OFFSETS_TOPIC)
    index = services.groups.partition_of(GROUP)
    change = PartitionChangeRecord(partition_id=index, topic_id=topic.id, leader=leader)
    services.metadata.committed([change])


def find(client: RawClient) -> Any:
    return client.ask(FindCoordinatorRequest(key=GROUP), 3)


def committed(client: RawClient) -> tuple[int, int]:
    """The error and the offset that the group has."""
    asked = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    reply = client.ask(OffsetFetchRequest(group_id=GROUP, topics=[asked]), 7)
    if reply.error_code:
        return reply.error_code, -1
    (partition,) = reply.topics[0].partitions
    return partition.error_code, partition.committed_offset


def commit(client: RawClient, offset: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    reply = client.ask(OffsetCommitRequest(group_id=GROUP, topics=[topic]), 8)
    code: int = reply.topics[0].partitions[0].error_code
    return code


def test_a_group_is_where_its_partition_is_led_and_keeps_its_offsets(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("t")
        assert find(client).node_id == 1
        assert commit(client, 7) == ErrorCode.NONE
        shard = inside.node._services.groups.shard_of(GROUP)
        inside.call(led_by(inside, 1))
        assert inside.node._services.groups.shard_of(GROUP) is shard, "only the epoch is new"
        inside.call(led_by(inside, ANOTHER_NODE))
        assert committed(client) == (ErrorCode.NOT_COORDINATOR, -1)
        assert commit(client, 8) == ErrorCode.NOT_COORDINATOR
        assert find(client).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, "it is unknown"
        inside.call(led_by(inside, 1))
        assert find(client).node_id == 1
        assert committed(client) == (ErrorCode.NONE, 7)


def test_whoever_waits_for_a_group_that_moves_is_told_to_look_for_it(tmp_path: Path) -> None:
    settings = {"group_initial_rebalance_delay_ms": 60_000}
    with BrokerInside(tmp_path, **settings) as inside, RawClient(inside.bootstrap) as client:
        assert find(client).node_id == 1
        join = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        client.send(join, 3)
        with RawClient(inside.bootstrap) as other:
            assert find(other).node_id == 1, "the join has been taken in by now"
        inside.call(led_by(inside, ANOTHER_NODE))
        assert client.receive().error_code == ErrorCode.NOT_COORDINATOR
