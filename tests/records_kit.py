"""Batches and common requests for tests that speak raw frames."""

from __future__ import annotations

from typing import Any

from ottla.wire.compression import Compression, compress
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    Record,
    decode_records,
    encode_batch,
    headers_in,
    read_header,
    seal_batch,
)
from raw_client import RawClient

NOW_MS = 1_790_000_000_000


def batch(*values: bytes | None, key: bytes | None = b"k", **options: Any) -> bytearray:
    timestamp = options.pop("timestamp", NOW_MS)
    records = [Record(at, timestamp, key, value) for at, value in enumerate(values)]
    return encode_batch(records, **options)


def forged(
    body: bytes,
    count: int,
    compression: Compression = Compression.NONE,
    *,
    is_packed: Compression = Compression.NONE,
) -> bytearray:
    """An intact batch that says it holds so many records; `is_packed` lies about the codec too."""
    packed = compress(compression, body)
    header = read_header(batch(b""))._replace(
        batch_length=BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES + len(packed),
        attributes=compression or is_packed,
        last_offset_delta=count - 1,
        count=count,
    )
    return seal_batch(header, packed)


def produce(
    client: RawClient,
    topic: str,
    data: bytes | bytearray | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = 12,
) -> Any:
    """Produces one batch and returns the partition's answer."""
    reply = client.ask(produce_request(topic, {partition: data}, acks=acks), version)
    return reply.responses[0].partition_responses[0]


def produce_request(
    topic: str, batches: dict[int, bytes | bytearray | None], *, acks: int = -1
) -> ProduceRequest:
    parts = [PartitionProduceData(index, data) for index, data in batches.items()]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(topic, parts)])


def fetch_request(topic: str, offsets: dict[int, int], **options: Any) -> FetchRequest:
    per_partition = options.pop("partition_max_bytes", 1_048_576)
    epoch = options.pop("current_leader_epoch", -1)
    parts = [
        FetchPartition(
            index,
            fetch_offset=offset,
            partition_max_bytes=per_partition,
            current_leader_epoch=epoch,
        )
        for index, offset in offsets.items()
    ]
    options.setdefault("max_wait_ms", 0)
    options.setdefault("min_bytes", 1)
    return FetchRequest(topics=[FetchTopic(topic, partitions=parts)], **options)


def fetch(client: RawClient, topic: str, offset: int, *, version: int = 12, **options: Any) -> Any:
    """Fetches partition 0 and returns its answer."""
    reply = client.ask(fetch_request(topic, {0: offset}, **options), version)
    return reply.responses[0].partitions[0]


def values_in(data: bytes | bytearray | memoryview | None) -> list[bytes | None]:
    """The values of all whole batches."""
    return [
        record.value
        for position, _ in headers_in(data or b"")
        for record in decode_records(data or b"", position)
    ]


def list_offset(client: RawClient, topic: str, timestamp: int, *, version: int = 7) -> Any:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=timestamp)])],
    )
    return client.ask(request, version).topics[0].partitions[0]


__all__ = [
    "NOW_MS",
    "Compression",
    "batch",
    "fetch",
    "fetch_request",
    "forged",
    "list_offset",
    "produce",
    "produce_request",
    "values_in",
]
