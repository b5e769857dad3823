"""What consumers put into the opaque bytes of JoinGroup and SyncGroup."""

from ottla.wire.schema import BYTES, INT32, STRING, Array, Message, Struct, field


class TopicPartition(Struct):
    topic: str = field(STRING, "1+")
    partitions: list[int] = field(Array(INT32), "1+")


class ConsumerProtocolSubscription(Message, versions="0-3", flexible="none"):
    topics: list[str] = field(Array(STRING))
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = field(Array(TopicPartition), "1+")
    generation_id: int = field(INT32, "2+", default=-1)
    rack_id: str | None = field(STRING, "3+", nullable="3+", default=None)
