"""One produce request to one leader; the producer decides whether it is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.client.failures import BadReply
from ottla.client.values import Produced
from ottla.errors import NotLeader
from ottla.types import TopicPartition
from ottla.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

UNANSWERED: Final = Produced(0, -1, -1, -1, None)


async def produce(
    cluster: Cluster, batches: Mapping[TopicPartition, Buffer], *, acks: int, timeout_ms: int
) -> dict[TopicPartition, Produced]:
    """The answer for each batch; with acks=0 there is none."""
    grouped = await cluster.by_leader(batches)
    if len(grouped) != 1:
        raise NotLeader(f"{', '.join(map(str, batches))} have {len(grouped)} leaders, not one")
    connection = await cluster.to_node(next(iter(grouped)))
    request = _request(batches, acks, timeout_ms)
    if acks == 0:
        connection.tell(request)
        await connection.drained()
        return dict.fromkeys(batches, UNANSWERED)
    reply = await connection.ask(
        request,
        ProduceResponse,
        timeout_s=cluster.settings.request_timeout_s + timeout_ms / 1000,
    )
    produced = {
        TopicPartition(topic.name, answer.index): Produced(
            answer.error_code,
            answer.base_offset,
            answer.log_append_time_ms,
            answer.log_start_offset,
            answer.error_message,
        )
        for topic in reply.responses
        for answer in topic.partition_responses
    }
    if produced.keys() != batches.keys():
        raise BadReply(f"{connection.address} did not answer for each batch of a produce")
    return produced


def _request(
    batches: Mapping[TopicPartition, Buffer], acks: int, timeout_ms: int
) -> ProduceRequest:
    topics: dict[str, list[PartitionProduceData]] = {}
    for partition, batch in batches.items():
        data = PartitionProduceData(index=partition.partition, records=batch)
        topics.setdefault(partition.topic, []).append(data)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
        ],
    )
