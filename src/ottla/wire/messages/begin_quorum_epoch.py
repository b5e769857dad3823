"""A new leader of the metadata log tells the voters of its epoch."""

from ottla.wire.schema import INT16, INT32, STRING, UINT16, UUID, Array, Message, Struct, field


class BeginQuorumEpochPartition(Struct):
    partition_index: int = field(INT32)
    voter_directory_id: bytes = field(UUID, "1+")
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class BeginQuorumEpochTopic(Struct):
    topic_name: str = field(STRING)
    partitions: list[BeginQuorumEpochPartition] = field(Array(BeginQuorumEpochPartition))


class LeaderEndpoint(Struct):
    name: str = field(STRING, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class BeginQuorumEpochRequest(Message, api_key=53, versions="0-1", flexible="1+"):
    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    voter_id: int = field(INT32, "1+", default=-1)
    topics: list[BeginQuorumEpochTopic] = field(Array(BeginQuorumEpochTopic))
    leader_endpoints: list[LeaderEndpoint] = field(Array(LeaderEndpoint), "1+")


class BeginQuorumEpochPartitionResult(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class BeginQuorumEpochTopicResult(Struct):
    topic_name: str = field(STRING)
    partitions: list[BeginQuorumEpochPartitionResult] = field(
        Array(BeginQuorumEpochPartitionResult)
    )


class NodeEndpoint(Struct):
    node_id: int = field(INT32, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class BeginQuorumEpochResponse(Message, api_key=53, versions="0-1", flexible="1+"):
    error_code: int = field(INT16)
    topics: list[BeginQuorumEpochTopicResult] = field(Array(BeginQuorumEpochTopicResult))
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), "1+", tag=0, tagged="1+")
