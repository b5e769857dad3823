"""The leader of the metadata log resigns, and says who should follow it."""

from ottla.wire.schema import INT16, INT32, STRING, UINT16, UUID, Array, Message, Struct, field


class PreferredCandidate(Struct):
    candidate_id: int = field(INT32, "1+")
    candidate_directory_id: bytes = field(UUID, "1+")


class EndQuorumEpochPartition(Struct):
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    preferred_successors: list[int] = field(Array(INT32), "0")
    preferred_candidates: list[PreferredCandidate] = field(Array(PreferredCandidate), "1+")


class EndQuorumEpochTopic(Struct):
    topic_name: str = field(STRING)
    partitions: list[EndQuorumEpochPartition] = field(Array(EndQuorumEpochPartition))


class LeaderEndpoint(Struct):
    name: str = field(STRING, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class EndQuorumEpochRequest(Message, api_key=54, versions="0-1", flexible="1+"):
    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    topics: list[EndQuorumEpochTopic] = field(Array(EndQuorumEpochTopic))
    leader_endpoints: list[LeaderEndpoint] = field(Array(LeaderEndpoint), "1+")


class EndQuorumEpochPartitionResult(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class EndQuorumEpochTopicResult(Struct):
    topic_name: str = field(STRING)
    partitions: list[EndQuorumEpochPartitionResult] = field(Array(EndQuorumEpochPartitionResult))


class NodeEndpoint(Struct):
    node_id: int = field(INT32, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class EndQuorumEpochResponse(Message, api_key=54, versions="0-1", flexible="1+"):
    error_code: int = field(INT16)
    topics: list[EndQuorumEpochTopicResult] = field(Array(EndQuorumEpochTopicResult))
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), "1+", tag=0, tagged="1+")
