"""Names for the numbers and strings that must not be mixed up."""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
NodeId = NewType("NodeId", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TopicId = NewType("TopicId", bytes)

NO_OFFSET: Final = Offset(-1)
NO_EPOCH: Final = LeaderEpoch(-1)
NO_NODE: Final = NodeId(-1)
NO_PRODUCER: Final = ProducerId(-1)
NO_TOPIC_ID: Final = TopicId(bytes(16))

# How the nodes of a cluster name themselves to each other: they are told more than clients.
NODE_SOFTWARE: Final = "ottla-node"
METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = TopicId(bytes(15) + b"\x01")
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
# By this client id Kafka knows a tool of its own, which alone may write to internal topics.
ADMIN_CLIENT_ID: Final = "__admin_client"
# What the broker itself has to know after a power cut: write.caching has no say there.
ALWAYS_SYNCED_TOPICS: Final = INTERNAL_TOPICS | {METADATA_TOPIC}


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Now(NamedTuple):
    """One reading of both clocks: records carry the wall's, deadlines count on the steady one."""

    wall_ms: int
    steady_ms: int
