"""DescribeTopicPartitions, version 0 (KIP-966): topics page by page, with a cursor.

Eligible leader replicas are not kept yet, so those lists are empty.
"""

from __future__ import annotations

from ottla.broker.control.metadata import MetadataCache
from ottla.broker.handlers.metadata import offline_replicas
from ottla.broker.network.operations import ALL_TOPIC_OPERATIONS
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.cluster.image import PartitionImage, TopicImage
from ottla.cluster.names import check_topic_name
from ottla.errors import InvalidRequest, OttlaError, UnknownTopicOrPartition, code_of
from ottla.types import INTERNAL_TOPICS, NO_NODE
from ottla.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
)


def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    cache = services.metadata
    names = _names(cache, request)
    limit = services.config.max_request_partition_size_limit
    room = max(1, min(limit, request.response_partition_limit))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if not room:
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=0)
            break
        topic = cache.image.topics_by_name.get(name)
        if topic is None:
            if request.topics:
                response.topics.append(_missing(name))
            continue
        cursor = request.cursor
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        described = _topic(cache, context.listener, topic, first, room)
        response.topics.append(described)
        room -= len(described.partitions)
        stop = first + len(described.partitions)
        if stop < len(topic.partitions):
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=stop)
            break
    return response


def _names(cache: MetadataCache, request: DescribeTopicPartitionsRequest) -> list[str]:
    asked = {topic.name for topic in request.topics} or set(cache.image.topics_by_name)
    cursor = request.cursor
    if cursor is not None:
        if request.topics and cursor.topic_name not in asked:
            raise InvalidRequest(f"The cursor's topic {cursor.topic_name} is not asked for.")
        if cursor.partition_index < 0:
            raise InvalidRequest(f"The cursor's partition is {cursor.partition_index}.")
        asked = {name for name in asked if name >= cursor.topic_name}
    return sorted(asked)


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    error: OttlaError
    try:
        check_topic_name(name)
        error = UnknownTopicOrPartition(name)
    except OttlaError as wrong:
        error = wrong
    return DescribeTopicPartitionsResponseTopic(
        error_code=code_of(error),
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )


def _topic(
    cache: MetadataCache, listener: str, topic: TopicImage, first: int, count: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            _partition(cache, listener, index, topic.partitions[index])
            for index in range(first, min(first + count, len(topic.partitions)))
        ],
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )


def _partition(
    cache: MetadataCache, listener: str, index: int, partition: PartitionImage
) -> DescribeTopicPartitionsResponsePartition:
    offline = offline_replicas(cache, listener, partition)
    is_absent = partition.leader in offline or partition.leader == cache.absent_leader
    has_leader = partition.leader in partition.replicas and not is_absent
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=partition.leader if has_leader else NO_NODE,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=offline,
    )


def error_response(
    request: DescribeTopicPartitionsRequest, error: Exception
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=code_of(error), name=topic.name)
            for topic in request.topics
        ]
    )
