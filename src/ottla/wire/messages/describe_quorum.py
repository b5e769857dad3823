"""The voters and observers of the metadata log, and how far each has come (KIP-836, KIP-853)."""

from ottla.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Array,
    Message,
    Struct,
    field,
)


class DescribeQuorumPartition(Struct):
    partition_index: int = field(INT32)


class DescribeQuorumTopic(Struct):
    topic_name: str = field(STRING)
    partitions: list[DescribeQuorumPartition] = field(Array(DescribeQuorumPartition))


class DescribeQuorumRequest(Message, api_key=55, versions="0-2", flexible="0+"):
    topics: list[DescribeQuorumTopic] = field(Array(DescribeQuorumTopic))


class QuorumReplica(Struct):
    replica_id: int = field(INT32)
    replica_directory_id: bytes = field(UUID, "2+")
    log_end_offset: int = field(INT64)
    last_fetch_timestamp: int = field(INT64, "1+", default=-1)
    last_caught_up_timestamp: int = field(INT64, "1+", default=-1)


class DescribeQuorumPartitionResult(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "2+", nullable="2+")
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    high_watermark: int = field(INT64)
    current_voters: list[QuorumReplica] = field(Array(QuorumReplica))
    observers: list[QuorumReplica] = field(Array(QuorumReplica))


class DescribeQuorumTopicResult(Struct):
    topic_name: str = field(STRING)
    partitions: list[DescribeQuorumPartitionResult] = field(Array(DescribeQuorumPartitionResult))


class QuorumListener(Struct):
    name: str = field(STRING, "2+")
    host: str = field(STRING, "2+")
    port: int = field(UINT16, "2+")


class QuorumNode(Struct):
    node_id: int = field(INT32, "2+")
    listeners: list[QuorumListener] = field(Array(QuorumListener), "2+")


class DescribeQuorumResponse(Message, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "2+", nullable="2+")
    topics: list[DescribeQuorumTopicResult] = field(Array(DescribeQuorumTopicResult))
    nodes: list[QuorumNode] = field(Array(QuorumNode), "2+")
