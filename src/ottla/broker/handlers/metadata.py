"""Metadata, versions 0 to 13 (KIP-4, 112, 227, 430, 516, 1102).

Null topics mean all, and so does an empty list in version 0; from version 1 on an empty list means
none. From version 12 on topics can be asked for by id. A topic that does not exist is created if
both the request and auto.create.topics.enable allow it; the answer then waits for its commit and
shows it ready for use, where Kafka makes the client ask again. Left out: errors for version 0
clients about replicas that are not available.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from ottla.broker.control.metadata import MetadataCache
from ottla.broker.control.topic_creation import ensure_topics
from ottla.broker.network.operations import ALL_CLUSTER_OPERATIONS, ALL_TOPIC_OPERATIONS, NOT_ASKED
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.cluster.directories import lies_offline
from ottla.cluster.image import PartitionImage, TopicImage
from ottla.cluster.names import check_topic_name
from ottla.errors import ErrorCode, InvalidRequest, OttlaError, code_of
from ottla.types import INTERNAL_TOPICS, NO_NODE, NO_TOPIC_ID
from ottla.wire.codec import EncodedMessage, encode
from ottla.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def handle(
    services: Services, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | EncodedMessage | Awaitable[MetadataResponse]:
    topics = request.topics
    if topics is None or (context.version == 0 and not topics):
        return _everything(services, context, request)
    if context.version < 12:
        _check_named(topics, context.version)
    if request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        names = dict.fromkeys(topic.name for topic in topics)
        missing = [name for name in names if name and not services.metadata.has_topic(name)]
        if missing:
            return _create_and_answer(services, context, request, missing)
    return _answer(services, context, request, {})


def _everything(
    services: Services, context: RequestContext, request: MetadataRequest
) -> EncodedMessage:
    """All topics, as bytes: with thousands of partitions each answer would take tens of ms."""
    cache = services.metadata

    def build() -> EncodedMessage:
        topics = cache.image.topics_by_name.values()
        found = [_topic(cache, context, request, topic) for topic in topics]
        response = _response(services, context, request, found)
        return EncodedMessage(body=encode(response, context.version))

    asks_topics = request.include_topic_authorized_operations
    asks_cluster = request.include_cluster_authorized_operations
    key = ("metadata", context.version, context.listener, asks_topics, asks_cluster)
    return cache.kept_for_image(key, build)


def _check_named(topics: list[MetadataRequestTopic], version: int) -> None:
    if any(topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in topics):
        raise InvalidRequest(f"In version {version} topics are asked for by their names.")


async def _create_and_answer(
    services: Services, context: RequestContext, request: MetadataRequest, missing: list[str]
) -> MetadataResponse:
    failures = await ensure_topics(services, missing)
    return _answer(services, context, request, failures)


def _answer(
    services: Services,
    context: RequestContext,
    request: MetadataRequest,
    failures: Mapping[str, OttlaError],
) -> MetadataResponse:
    cache = services.metadata
    found = []
    asked = dict.fromkeys((topic.name, topic.topic_id) for topic in request.topics or ())
    for name, topic_id in asked:
        try:
            topic = _find(cache, name, topic_id, failures)
            found.append(_topic(cache, context, request, topic))
        except OttlaError as error:
            found.append(_missing(name, topic_id, request, error))
    return _response(services, context, request, found)


def _find(
    cache: MetadataCache, name: str | None, topic_id: bytes, failures: Mapping[str, OttlaError]
) -> TopicImage:
    if topic_id != NO_TOPIC_ID:
        return cache.topic_by_id(topic_id)
    if name is None:
        raise InvalidRequest("A topic is asked for with neither name nor id.")
    if name in failures:
        raise failures[name]
    if not cache.has_topic(name):
        check_topic_name(name)
    return cache.topic(name)


def _missing(
    name: str | None, topic_id: bytes, request: MetadataRequest, error: OttlaError
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code_of(error),
        name=None if topic_id != NO_TOPIC_ID else name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=_topic_operations(request),
    )


def _topic_operations(request: MetadataRequest) -> int:
    return ALL_TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED


def _response(
    services: Services,
    context: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    brokers = [
        MetadataResponseBroker(
            node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker in services.metadata.brokers()
        if (endpoint := broker.endpoints.get(context.listener)) is not None
    ]
    asks_cluster = request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=brokers,
        cluster_id=services.cluster_id,
        controller_id=services.node_id,
        topics=topics,
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if asks_cluster else NOT_ASKED,
    )


def _topic(
    cache: MetadataCache, context: RequestContext, request: MetadataRequest, topic: TopicImage
) -> MetadataResponseTopic:
    # Before version 6 a leader without this listener is a leader that is not available.
    knows_listeners = context.version >= 6
    partitions = cache.kept_for_topic(
        topic,
        ("metadata", context.listener, knows_listeners),
        lambda topic: [
            _partition(cache, context.listener, knows_listeners, index, partition)
            for index, partition in topic.partitions.items()
        ],
    )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=_topic_operations(request),
    )


def _partition(
    cache: MetadataCache,
    listener: str,
    knows_listeners: bool,
    index: int,
    partition: PartitionImage,
) -> MetadataResponsePartition:
    leader = cache.image.brokers.get(partition.leader)
    error = ErrorCode.NONE
    if leader is None or leader.is_fenced or leader.id == cache.absent_leader:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif listener not in leader.endpoints:
        error = ErrorCode.LISTENER_NOT_FOUND if knows_listeners else ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=NO_NODE if error else partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=offline_replicas(cache, listener, partition),
    )


def offline_replicas(cache: MetadataCache, listener: str, partition: PartitionImage) -> list[int]:
    brokers = cache.image.brokers
    return [
        replica
        for replica in partition.replicas
        if (broker := brokers.get(replica)) is None
        or broker.is_fenced
        or listener not in broker.endpoints
        or lies_offline(broker, partition)
    ]


def error_response(request: MetadataRequest, error: Exception) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                error_code=code_of(error), name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in request.topics or ()
        ],
        error_code=code_of(error),
    )
