"""AssignReplicasToDirs: a broker tells in which directories its replicas lie (KIP-858)."""

from __future__ import annotations

from ottla.cluster.directories import assign
from ottla.cluster.image import MetadataImage
from ottla.cluster.registrations import check_epoch
from ottla.errors import (
    ErrorCode,
    NotLeader,
    OttlaError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    code_of,
)
from ottla.types import TopicId
from ottla.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryResult,
    PartitionResult,
    TopicResult,
)
from ottla.wire.schema import Message


def assigned(
    image: MetadataImage, request: AssignReplicasToDirsRequest
) -> tuple[list[Message], AssignReplicasToDirsResponse]:
    """One answer per replica; of one that is named twice the last word counts."""
    node_id = request.broker_id
    check_epoch(image, node_id, request.broker_epoch)
    places: dict[tuple[TopicId, int], bytes] = {}
    results = []
    for directory in request.directories:
        topics = []
        for asked in directory.topics:
            answers = []
            for replica in asked.partitions:
                code = ErrorCode.NONE
                try:
                    place = (TopicId(asked.topic_id), replica.partition_index)
                    _check_replica(image, node_id, *place)
                    places[place] = directory.id
                except OttlaError as error:
                    code = code_of(error)
                answers.append(PartitionResult(replica.partition_index, code))
            topics.append(TopicResult(asked.topic_id, answers))
        results.append(DirectoryResult(directory.id, topics))
    records = assign(image, node_id, [(*place, id) for place, id in places.items()])
    return [*records], AssignReplicasToDirsResponse(directories=results)


def _check_replica(image: MetadataImage, node_id: int, topic_id: TopicId, index: int) -> None:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise UnknownTopicId("There is no topic with this id.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise UnknownTopicOrPartition(f"There is no {topic.name}-{index}.")
    if node_id not in partition.replicas:
        raise NotLeader(f"Broker {node_id} has no replica of {topic.name}-{index}.")
