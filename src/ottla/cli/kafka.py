"""What the commands use of confluent-kafka, in one place: its packages do not export it to mypy."""

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
    libversion,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicMetadata,
)

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "AdminClient",
    "AlterConfigOpType",
    "ClusterMetadata",
    "ConfigEntry",
    "ConfigResource",
    "Consumer",
    "ConsumerGroupTopicPartitions",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "Producer",
    "TopicMetadata",
    "TopicPartition",
    "at_time",
    "earliest",
    "latest",
    "libversion",
]


def earliest() -> OffsetSpec:
    spec: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    return spec


def latest() -> OffsetSpec:
    spec: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return spec


def at_time(timestamp_ms: int) -> OffsetSpec:
    spec: OffsetSpec = OffsetSpec.for_timestamp(timestamp_ms)
    return spec
