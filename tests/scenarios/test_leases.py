"""A broker looks at its lease before it answers, however long its process slept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raw_client import RawClient
from records_kit import batch
from scenarios.in_process import BrokerInside

LATEST = -1


def codes_of(client: RawClient) -> dict[str, int]:
    """How a leader, or a coordinator, answers each request that only it may answer."""

    def first(request: Any, version: int, topics: str, partitions: str = "partitions") -> int:
        topic = getattr(client.ask(request, version), topics)[0]
        code: int = getattr(topic, partitions)[0].error_code
        return code

    produced = TopicProduceData("t", [PartitionProduceData(0, batch(b"v"))])
    both = TopicProduceData("t", [PartitionProduceData(n, batch(b"v")) for n in (0, 1)])
    end = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=LATEST)
    read = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 16)
    epoch = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    fetch = FetchRequest(
        max_bytes=1 << 16, topics=[FetchTopic(topic="t", partitions=[read])], session_epoch=-1
    )
    deletion = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 0)])
    ends = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[end])])
    epochs = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic("t", [epoch])])
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    return {
        "produce": first(
            ProduceRequest(acks=1, timeout_ms=9_000, topic_data=[produced]),
            9,
            "responses",
            "partition_responses",
        ),
        "produce two": first(
            ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=[both]),
            9,
            "responses",
            "partition_responses",
        ),
        "fetch": first(fetch, 12, "responses"),
        "old fetch": first(fetch, 10, "responses"),
        "end": first(ends, 7, "topics"),
        "delete": first(DeleteRecordsRequest([deletion], timeout_ms=9_000), 2, "topics"),
        "epoch": first(epochs, 4, "topics"),
        "group": client.ask(beat, 4).error_code,
        "coordinator": client.ask(FindCoordinatorRequest(key="g"), 3).error_code,
    }


def named_leader(client: RawClient) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    leader: int = client.ask(request, 9).topics[0].partitions[0].leader_id
    return leader


def test_a_request_that_has_waited_is_answered_under_the_lease_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("t", partitions=2)
        assert client.ask(FindCoordinatorRequest(key="g"), 3).error_code == ErrorCode.NONE
        before = codes_of(client)
        assert before.pop("group") == ErrorCode.UNKNOWN_MEMBER_ID
        assert set(before.values()) == {ErrorCode.NONE}
        assert named_leader(client) == inside.node.config.node_id

        async def sleep_through_it() -> None:
            """As if there were others, and the last heartbeat was answered long ago."""
            lease = inside.node._membership.lease
            monkeypatch.setattr(lease, "_is_needed", lambda: True)
            monkeypatch.setattr(lease, "_seconds", 0.0)
            lease._until_s = 0.0
            inside.node._look_before_requests()
            assert lease.is_held, "no timer has run"

        inside.call(sleep_through_it())
        after = codes_of(client)
        assert after.pop("group") == ErrorCode.NOT_COORDINATOR
        assert after.pop("coordinator") == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert after == dict.fromkeys(after, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert named_leader(client) == -1
