"""Ask a voter of the metadata log for its vote (KIP-595), or whether it would give it (KIP-996)."""

from ottla.wire.schema import (
    BOOL,
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


class VotePartition(Struct):
    partition_index: int = field(INT32)
    replica_epoch: int = field(INT32)
    replica_id: int = field(INT32)
    replica_directory_id: bytes = field(UUID, "1+")
    voter_directory_id: bytes = field(UUID, "1+")
    last_offset_epoch: int = field(INT32)
    last_offset: int = field(INT64)
    pre_vote: bool = field(BOOL, "2+")


class VoteTopic(Struct):
    topic_name: str = field(STRING)
    partitions: list[VotePartition] = field(Array(VotePartition))


class VoteRequest(Message, api_key=52, versions="0-2", flexible="0+"):
    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    voter_id: int = field(INT32, "1+", default=-1)
    topics: list[VoteTopic] = field(Array(VoteTopic))


class VotePartitionResult(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    vote_granted: bool = field(BOOL)


class VoteTopicResult(Struct):
    topic_name: str = field(STRING)
    partitions: list[VotePartitionResult] = field(Array(VotePartitionResult))


class NodeEndpoint(Struct):
    node_id: int = field(INT32, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class VoteResponse(Message, api_key=52, versions="0-2", flexible="0+"):
    error_code: int = field(INT16)
    topics: list[VoteTopicResult] = field(Array(VoteTopicResult))
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), "1+", tag=0, tagged="1+")
