"""Elect the preferred leaders of partitions, or any where there is none (KIP-183, KIP-460)."""

from ottla.wire.schema import INT8, INT16, INT32, STRING, Array, Message, Struct, field


class TopicPartitions(Struct):
    topic: str = field(STRING)
    partitions: list[int] = field(Array(INT32))


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible="2+"):
    election_type: int = field(INT8, "1+")
    topic_partitions: list[TopicPartitions] | None = field(Array(TopicPartitions), nullable="0+")
    timeout_ms: int = field(INT32, default=60_000)


class PartitionResult(Struct):
    partition_id: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ReplicaElectionResult(Struct):
    topic: str = field(STRING)
    partition_result: list[PartitionResult] = field(Array(PartitionResult))


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = field(Array(ReplicaElectionResult))
