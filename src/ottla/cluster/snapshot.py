"""A snapshot of the metadata: the records whose fold gives the same image.

They come in Kafka's order: features, brokers and controllers, topics with their partitions,
settings, producer ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ottla.cluster.features import METADATA_VERSION
from ottla.cluster.image import (
    NO_BROKER_EPOCH,
    RECOVERED,
    RECOVERING,
    BrokerImage,
    ControllerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from ottla.types import NO_NODE, TopicId
from ottla.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from ottla.wire.schema import Message

# So many topics, or owners of settings, are copied within a fraction of a millisecond.
COPIED_PER_STEP: Final = 250


def copy_of(image: MetadataImage) -> ImageCopy:
    """The fold of its records over an empty image is `image`."""
    copy = ImageCopy(image)
    while copy.step():
        pass
    return copy


class ImageCopy:
    """What an image says, copied in small steps, between which others can do their work.

    It is true only if the image did not change between the first step and the last.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._features = dict(image.features)
        self._brokers = list(image.brokers.values())
        self._controllers = list(image.controllers.values())
        self._last_registration = image.last_registration
        self._next_producer_id = image.next_producer_id
        self._topics_left = iter(list(image.topics_by_name.values()))
        self._topics: deque[tuple[TopicImage, dict[int, PartitionImage]]] = deque()
        self._owners_left = iter(list(image.configs.items()))
        self._configs: list[tuple[tuple[int, str], dict[str, str]]] = []

    def step(self) -> bool:
        """Copies some more; False when there is no more."""
        topics = list(islice(self._topics_left, COPIED_PER_STEP))
        self._topics += [(topic, topic.partitions.copy()) for topic in topics]
        owners = list(islice(self._owners_left, COPIED_PER_STEP))
        self._configs += [(owner, settings.copy()) for owner, settings in owners]
        return bool(topics or owners)

    def records(self) -> Iterator[Message]:
        """The whole copy as records, once: each part is freed as it is given out."""
        # Kafka's readers need the version before anything that depends on it.
        for name in sorted(self._features, key=lambda name: (name != METADATA_VERSION, name)):
            yield FeatureLevelRecord(name=name, feature_level=self._features[name])
        yield from self._departed()
        for broker in self._brokers:
            yield _registration(broker)
        for controller in self._controllers:
            yield _controller(controller)
        while self._topics:
            # To free a hundred thousand topics at one go would hold up everybody.
            topic, partitions = self._topics.popleft()
            yield TopicRecord(name=topic.name, topic_id=topic.id)
            for index, partition in partitions.items():
                yield _partition(topic.id, index, partition)
        for (resource_type, resource_name), settings in self._configs:
            for name, value in settings.items():
                yield ConfigRecord(
                    resource_type=resource_type, resource_name=resource_name, name=name, value=value
                )
        if self._next_producer_id:
            yield ProducerIdsRecord(
                broker_id=NO_NODE,
                broker_epoch=NO_BROKER_EPOCH,
                next_producer_id=self._next_producer_id,
            )

    def _departed(self) -> Iterator[Message]:
        """Came and went, and its epoch was the highest: nobody may get that again."""
        node_id, epoch = self._last_registration
        if epoch and all(broker.epoch != epoch for broker in self._brokers):
            yield RegisterBrokerRecord(broker_id=node_id, broker_epoch=epoch)
            yield UnregisterBrokerRecord(broker_id=node_id, broker_epoch=epoch)


def _controller(controller: ControllerImage) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        end_points=[
            ControllerEndpoint(name, *point) for name, point in controller.endpoints.items()
        ],
        features=[ControllerFeature(*levels) for levels in controller.features],
    )


def _registration(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[BrokerEndpoint(name, *point) for name, point in broker.endpoints.items()],
        rack=broker.rack,
        fenced=broker.is_fenced,
        in_controlled_shutdown=broker.is_shutting_down,
        log_dirs=list(broker.log_dirs),
        features=[BrokerFeature(*levels) for levels in broker.features],
    )


def _partition(topic_id: TopicId, index: int, partition: PartitionImage) -> PartitionRecord:
    eligible, last_known, is_recovering = partition.recovery
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.moving.removing),
        adding_replicas=list(partition.moving.adding),
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        leader_recovery_state=RECOVERING if is_recovering else RECOVERED,
        eligible_leader_replicas=list(eligible) or None,
        last_known_elr=list(last_known) or None,
    )
