"""Who does not lead a partition names who does, and where that is (KIP-951).

It spares the client a question for metadata: Produce from version 10 on, Fetch from version 16 on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.errors import ErrorCode, UnknownTopicOrPartition
from ottla.wire.messages import fetch, produce

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.cluster.image import BrokerImage, Endpoint

FETCH_VERSION: Final = 16
_PRODUCE_ERRORS: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER})
_FETCH_ERRORS: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class LeaderHints(NamedTuple):
    """For the clients of one listener."""

    metadata: MetadataCache
    listener: str

    def in_produce(
        self,
        topic: str,
        answer: produce.PartitionProduceResponse,
        response: produce.ProduceResponse,
    ) -> None:
        """Names the leader if the answer says that it is not here."""
        if answer.error_code not in _PRODUCE_ERRORS:
            return
        known = self._leader(topic, answer.index)
        if known is None:
            return
        epoch, broker, where = known
        answer.current_leader = produce.LeaderIdAndEpoch(broker.id, epoch)
        if all(named.node_id != broker.id for named in response.node_endpoints):
            response.node_endpoints.append(
                produce.NodeEndpoint(broker.id, where.host, where.port, broker.rack)
            )

    def in_fetch(
        self, topic: str, answer: fetch.PartitionData, response: fetch.FetchResponse
    ) -> None:
        """As in a produce; also where the client knows an earlier epoch of the leader."""
        if answer.error_code not in _FETCH_ERRORS:
            return
        known = self._leader(topic, answer.partition_index)
        if known is None:
            return
        epoch, broker, where = known
        answer.current_leader = fetch.LeaderIdAndEpoch(broker.id, epoch)
        if all(named.node_id != broker.id for named in response.node_endpoints):
            response.node_endpoints.append(
                fetch.NodeEndpoint(broker.id, where.host, where.port, broker.rack)
            )

    def _leader(self, topic: str, index: int) -> tuple[int, BrokerImage, Endpoint] | None:
        try:
            known = self.metadata.known_leader(topic, index, self.listener)
        except UnknownTopicOrPartition:
            return None
        return None if known is None else (known[0].leader_epoch, known[1], known[2])
