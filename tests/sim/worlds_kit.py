"""What stories about simulated clusters are told with."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.client.settings import ClientSettings
from ottla.client.values import LATEST
from ottla.errors import ErrorCode
from ottla.testing.sim.world import World
from ottla.types import TopicPartition
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.records import Record, decode_records, encode_batch, headers_in

ORDERS = TopicPartition("orders", 0)


class Outgoing(NamedTuple):
    partition: TopicPartition
    batch: bytearray
    count: int  # type: ignore[assignment]


def settings(world: World) -> ClientSettings:
    return ClientSettings(world.bootstrap, connect_timeout_s=2.0, request_timeout_s=5.0)


def batch_of(values: Sequence[bytes]) -> bytearray:
    return encode_batch([Record(at, 0, None, value) for at, value in enumerate(values)])


def keyed(key: bytes, value: bytes) -> bytearray:
    return encode_batch([Record(0, 0, key, value)])


async def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = 1,
    factor: int = 3,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Until it is there, whoever is the controller meanwhile."""
    given = [CreatableTopicConfig(*pair) for pair in (configs or {}).items()]
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, configs=given
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
    while True:
        reply = await cluster.ask_any(request, CreateTopicsResponse)
        if reply.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        await asyncio.sleep(0.5)


async def write(cluster: Cluster, partition: TopicPartition, values: Sequence[bytes]) -> None:
    """Each in a batch of its own; all are acknowledged by all in-sync replicas."""
    await write_batches(cluster, partition, [batch_of([value]) for value in values])


async def write_batches(
    cluster: Cluster, partition: TopicPartition, batches: Sequence[bytearray]
) -> None:
    async with Producer(cluster) as producer:
        await producer.send(*(Outgoing(partition, batch, 1) for batch in batches))
        await producer.flush()


async def read(cluster: Cluster, partition: TopicPartition) -> list[bytes]:
    """All values from the beginning to the end as it is now."""
    end = (await cluster.list_offsets({partition: LATEST}))[partition].offset
    values: list[bytes] = []
    position = 0
    while position < end:
        fetched = await cluster.fetch(partition, position, max_bytes=2**20)
        for at, header in headers_in(fetched.records):
            if not header.is_control:
                values += [record.value or b"" for record in decode_records(fetched.records, at)]
            position = header.next_offset
    return values


def digest_of(seed: int, story: Callable[[World], Coroutine[Any, Any, None]]) -> str:
    """Of all that happened, to the last byte on the network."""
    with World(seed, tracing=True) as world:
        world.run(story(world), limit_s=300)
        return hashlib.sha256("\n".join(world.story).encode()).hexdigest()


async def until(is_so: Callable[[], bool], pause_s: float = 0.05) -> None:
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(pause_s)
