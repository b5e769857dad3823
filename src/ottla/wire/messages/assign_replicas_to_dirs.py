"""A broker tells the controller in which directories its replicas lie (KIP-858)."""

from ottla.wire.schema import INT16, INT32, INT64, UUID, Array, Message, Struct, field


class PartitionData(Struct):
    partition_index: int = field(INT32)


class TopicData(Struct):
    topic_id: bytes = field(UUID)
    partitions: list[PartitionData] = field(Array(PartitionData))


class DirectoryData(Struct):
    id: bytes = field(UUID)
    topics: list[TopicData] = field(Array(TopicData))


class AssignReplicasToDirsRequest(Message, api_key=73, versions="0", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    directories: list[DirectoryData] = field(Array(DirectoryData))


class PartitionResult(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class TopicResult(Struct):
    topic_id: bytes = field(UUID)
    partitions: list[PartitionResult] = field(Array(PartitionResult))


class DirectoryResult(Struct):
    id: bytes = field(UUID)
    topics: list[TopicResult] = field(Array(TopicResult))


class AssignReplicasToDirsResponse(Message, api_key=73, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    directories: list[DirectoryResult] = field(Array(DirectoryResult))
