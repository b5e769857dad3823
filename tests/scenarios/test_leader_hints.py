"""A node that does not lead a partition says who does (KIP-951)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.errors import ErrorCode
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.metadata_records import (
    BrokerEndpoint,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from ottla.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.wire.records import Record, encode_batch
from raw_client import RawClient
from scenarios.in_process import BrokerInside

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def move(inside: BrokerInside, topic: str, replicas: list[int] | None = None) -> None:
    """As if the controller had committed that another broker is there and leads both partitions."""
    metadata = inside.node._services.metadata
    point = BrokerEndpoint("PLAINTEXT", "elsewhere", 9093, 0)
    topic_id = metadata.topic(topic).id
    metadata.committed(
        [
            RegisterBrokerRecord(broker_id=2, broker_epoch=9, end_points=[point], fenced=False),
            *(
                PartitionChangeRecord(
                    partition_id=index, topic_id=topic_id, leader=2, isr=replicas, replicas=replicas
                )
                for index in (0, 1)
            ),
        ]
    )


@pytest.mark.parametrize("indexes", [(0,), (0, 1)])
def test_a_produce_for_another_node_is_told_where_that_is(
    tmp_path: Path, indexes: tuple[int, ...]
) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("t", partitions=2)
        inside.call(move(inside, "t"))
        batch = encode_batch([Record(0, 0, None, b"v")])
        data = [PartitionProduceData(index=index, records=batch) for index in indexes]
        request = ProduceRequest(
            acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData("t", data)]
        )
        reply = client.ask(request, 12)
        answers = reply.responses[0].partition_responses
        assert [answer.error_code for answer in answers] == [NOT_LEADER for _ in indexes]
        assert [answer.current_leader.leader_id for answer in answers] == [2 for _ in indexes]
        assert all(answer.current_leader.leader_epoch > 0 for answer in answers)
        (where,) = reply.node_endpoints
        assert (where.node_id, where.host, where.port) == (2, "elsewhere", 9093)


@pytest.mark.parametrize("epoch", [-1, 0])
@pytest.mark.parametrize("version", [15, 16, 17])
def test_a_fetch_that_is_refused_is_told_who_leads(
    tmp_path: Path, version: int, epoch: int
) -> None:
    """Because there is no replica here, or because the client knows an earlier epoch."""
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("t", partitions=2)
        inside.call(move(inside, "t", [2] if epoch < 0 else None))
        topic_id = inside.node._services.metadata.topic("t").id
        asked = [
            FetchPartition(
                index, fetch_offset=0, partition_max_bytes=100, current_leader_epoch=epoch
            )
            for index in (0, 1)
        ]
        request = FetchRequest(
            min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=asked)]
        )
        reply = client.ask(request, version)
        answers = reply.responses[0].partitions
        error = NOT_LEADER if epoch < 0 else ErrorCode.FENCED_LEADER_EPOCH
        assert [answer.error_code for answer in answers] == [error] * 2
        if version < 16:
            assert [answer.current_leader.leader_id for answer in answers] == [-1, -1]
            return
        assert [answer.current_leader.leader_id for answer in answers] == [2, 2]
        assert all(answer.current_leader.leader_epoch > 0 for answer in answers)
        (where,) = reply.node_endpoints
        assert (where.node_id, where.host, where.port) == (2, "elsewhere", 9093)
