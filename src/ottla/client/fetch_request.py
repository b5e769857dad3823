"""One fetch of one partition, outside of any fetch session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.client.connection import FETCH
from ottla.client.failures import BadReply, OffsetOutOfRange, is_passing, refusal
from ottla.client.values import EARLIEST, LATEST, Fetched
from ottla.errors import ErrorCode, NotLeader, OttlaError
from ottla.types import NO_TOPIC_ID, Offset, ProducerId, TopicId, TopicPartition
from ottla.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

# From 13 on a topic goes by its id, which only newer brokers tell.
VERSION_OF_NAMES_MAX: Final = 12
NOTHING: Final = memoryview(b"")


class Wish(NamedTuple):
    partition: TopicPartition
    offset: int
    max_bytes: int
    min_bytes: int
    max_wait_ms: int
    read_committed: bool


async def fetch(cluster: Cluster, wish: Wish) -> Fetched:
    """Asks the leader, which may change between tries."""

    async def attempt() -> Fetched | None:
        try:
            return await _ask_leader(cluster, wish)
        except OttlaError as error:
            if is_passing(error, soon=True):
                cluster.forget_leaders([wish.partition])
            raise

    fetched = await cluster.retry(f"reading {wish.partition} at {wish.offset}", attempt)
    if fetched is None:
        raise await _out_of_range(cluster, wish)
    return fetched


async def _ask_leader(cluster: Cluster, wish: Wish) -> Fetched | None:
    """None when the offset is not in the log."""
    (leader,) = await cluster.by_leader([wish.partition])
    connection = await cluster.to_node(leader, FETCH)
    topic_id = cluster.image.topic_id(wish.partition.topic)
    reply = await connection.ask(
        _request(wish, topic_id),
        FetchResponse,
        timeout_s=cluster.settings.request_timeout_s + wish.max_wait_ms / 1000,
        version_max=VERSION_OF_NAMES_MAX if topic_id == NO_TOPIC_ID else None,
    )
    if reply.error_code:
        raise refusal(reply.error_code, wish.partition)
    answers = [(topic, partition) for topic in reply.responses for partition in topic.partitions]
    if not answers:
        # A broker that holds us back by quota answers with nothing at all.
        raise refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, wish.partition)
    topic, partition = answers[0]
    is_topic = (
        topic.topic_id == topic_id
        if topic.topic_id != NO_TOPIC_ID
        else (topic.topic == wish.partition.topic)
    )
    if len(answers) != 1 or not is_topic or partition.partition_index != wish.partition.partition:
        raise BadReply(f"{connection.address} answered a fetch of {wish.partition} with another's")
    return _fetched(wish, partition)


def _request(wish: Wish, topic_id: TopicId) -> FetchRequest:
    partition = FetchPartition(
        partition=wish.partition.partition,
        fetch_offset=wish.offset,
        partition_max_bytes=wish.max_bytes,
    )
    return FetchRequest(
        max_wait_ms=wish.max_wait_ms,
        min_bytes=wish.min_bytes,
        max_bytes=wish.max_bytes,
        isolation_level=int(wish.read_committed),
        topics=[FetchTopic(topic=wish.partition.topic, topic_id=topic_id, partitions=[partition])],
    )


def _fetched(wish: Wish, answer: PartitionData) -> Fetched | None:
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return None
    if answer.error_code:
        raise refusal(answer.error_code, wish.partition)
    if answer.preferred_read_replica >= 0 and not answer.records:
        raise NotLeader(f"{wish.partition} is to be read from {answer.preferred_read_replica}")
    aborted = tuple(
        (ProducerId(transaction.producer_id), Offset(transaction.first_offset))
        for transaction in answer.aborted_transactions or ()
    )
    return Fetched(
        partition=wish.partition,
        records=NOTHING if answer.records is None else memoryview(answer.records),
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=answer.log_start_offset,
        aborted=aborted,
    )


async def _out_of_range(cluster: Cluster, wish: Wish) -> OffsetOutOfRange:
    """Looks up what there is, since brokers do not say it with the error."""
    first = await cluster.list_offsets({wish.partition: EARLIEST})
    last = await cluster.list_offsets({wish.partition: LATEST})
    return OffsetOutOfRange(
        wish.partition, wish.offset, first[wish.partition].offset, last[wish.partition].offset
    )
