"""Markers on their way: what was decided is told to every partition of the transaction.

Only decisions that are committed come here, so whatever is told twice, by this coordinator or by
the next one, says the same. A marker is tried until its partition has it, or is no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ottla.broker.control.node_batches import NodeBatches
from ottla.coordinators.transaction_records import Transaction, by_topic
from ottla.coordinators.transaction_states import TransactionState
from ottla.errors import ErrorCode, OttlaError
from ottla.types import NO_NODE, NodeId, TopicPartition
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from ottla.broker.control.needs import ControlServices
    from ottla.broker.control.node_connection import Brokers

logger = logging.getLogger(__name__)

MARKERS_AT_ONCE: Final = 1000
RETRY_PAUSE_S: Final = 0.1

# A later epoch has written there: what this marker was to end is over.
_SETTLED: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})


class Unmarked:
    """A transaction that is decided, and the partitions that have not been told."""

    __slots__ = ("is_dropped", "left", "name", "shard", "transaction")

    def __init__(self, shard: int, name: str, transaction: Transaction) -> None:
        self.shard = shard
        self.name = name
        self.transaction = transaction
        self.left = set(transaction.partitions)
        self.is_dropped = False


class Errand:
    """What of a transaction one node is to be told."""

    __slots__ = ("partitions", "unmarked")

    def __init__(self, unmarked: Unmarked, partitions: frozenset[TopicPartition]) -> None:
        self.unmarked = unmarked
        self.partitions = partitions


class Markers:
    def __init__(
        self,
        services: ControlServices,
        brokers: Brokers,
        coordinator_epoch: Callable[[int], int],
        on_marked: Callable[[Unmarked], None],
    ) -> None:
        """`on_marked` is told of a transaction when all its partitions have their marker."""
        self._services = services
        self._brokers = brokers
        self._coordinator_epoch = coordinator_epoch
        self._on_marked = on_marked
        self._unmarked: dict[tuple[int, str], Unmarked] = {}
        self._batches: NodeBatches[Errand] = NodeBatches(
            services.loop,
            self._send,
            lambda errand: errand.unmarked.transaction.producer_id,
            MARKERS_AT_ONCE,
        )
        self._pauses: dict[asyncio.TimerHandle, None] = {}

    @property
    def waiting(self) -> int:
        """Partitions that have not been told of a decision."""
        return sum(len(unmarked.left) for unmarked in self._unmarked.values())

    def add(self, shard: int, name: str, transaction: Transaction) -> None:
        known = self._unmarked.get((shard, name))
        if known is not None:
            if known.transaction == transaction:
                return
            known.is_dropped = True
        unmarked = self._unmarked[shard, name] = Unmarked(shard, name, transaction)
        self._route(unmarked, unmarked.transaction.partitions)

    def drop(self, shard: int, name: str) -> None:
        """It is over, or nobody's business any more."""
        unmarked = self._unmarked.pop((shard, name), None)
        if unmarked is not None:
            unmarked.is_dropped = True

    def drop_shard(self, shard: int) -> None:
        for key in [key for key in self._unmarked if key[0] == shard]:
            self.drop(*key)

    def close(self) -> None:
        self._batches.close()
        for pause in self._pauses:
            pause.cancel()
        self._pauses.clear()
        self._unmarked.clear()

    # ---------------------------------------------------------------------------------- the ways

    def _route(self, unmarked: Unmarked, partitions: Iterable[TopicPartition]) -> None:
        if unmarked.is_dropped:
            return
        by_node: dict[NodeId, set[TopicPartition]] = {}
        for partition in partitions:
            leader = self._leader_of(partition)
            if leader is None:
                unmarked.left.discard(partition)
            else:
                by_node.setdefault(leader, set()).add(partition)
        self._route_later(unmarked, by_node.pop(NO_NODE, ()))
        for node_id, found in by_node.items():
            self._batches.add(node_id, Errand(unmarked, frozenset(found)))
        self._look(unmarked)

    def _leader_of(self, partition: TopicPartition) -> NodeId | None:
        """None where there is no such partition any more."""
        topic = self._services.metadata.image.topics_by_name.get(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        return None if found is None else NodeId(found.leader)

    def _route_later(self, unmarked: Unmarked, partitions: Iterable[TopicPartition]) -> None:
        """After a pause: another node may lead by then."""
        again = frozenset(partitions)
        if not again:
            return

        def route() -> None:
            del self._pauses[pause]
            self._route(unmarked, again)

        pause = self._services.loop.call_later(RETRY_PAUSE_S, route)
        self._pauses[pause] = None

    def _look(self, unmarked: Unmarked) -> None:
        if not unmarked.left and not unmarked.is_dropped:
            self._on_marked(unmarked)

    # ------------------------------------------------------------------------------- the requests

    async def _send(self, node_id: NodeId, errands: list[Errand]) -> None:
        errands = [errand for errand in errands if not errand.unmarked.is_dropped]
        if not errands:
            return
        request = WriteTxnMarkersRequest([self._marker(errand) for errand in errands])
        timeout_s = self._services.config.request_timeout_ms / 1000
        try:
            reply = await self._brokers.ask(node_id, request, WriteTxnMarkersResponse, timeout_s)
        except (OttlaError, OSError, TimeoutError) as error:
            logger.info("node %d has not taken %d markers: %s", node_id, len(errands), error)
            for errand in errands:
                self._route_later(errand.unmarked, errand.partitions)
            return
        answers = {result.producer_id: result for result in reply.markers}
        for errand in errands:
            answer = answers.get(errand.unmarked.transaction.producer_id)
            self._answered(errand, {} if answer is None else dict(_codes(answer)))

    def _marker(self, errand: Errand) -> WritableTxnMarker:
        transaction = errand.unmarked.transaction
        return WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            transaction_result=transaction.state is TransactionState.PREPARE_COMMIT,
            topics=[WritableTxnMarkerTopic(*topic) for topic in by_topic(errand.partitions)],
            coordinator_epoch=self._coordinator_epoch(errand.unmarked.shard),
            transaction_version=transaction.client_version,
        )

    def _answered(self, errand: Errand, codes: dict[TopicPartition, int]) -> None:
        unmarked = errand.unmarked
        again: list[TopicPartition] = []
        for partition in errand.partitions:
            code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code in _SETTLED:
                unmarked.left.discard(partition)
            elif code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                logger.warning("%s: another coordinator has ended %r", partition, unmarked.name)
                self.drop(unmarked.shard, unmarked.name)
                return
            else:
                again.append(partition)
        self._route_later(unmarked, again)
        self._look(unmarked)


def _codes(result: WritableTxnMarkerResult) -> Iterator[tuple[TopicPartition, int]]:
    for topic in result.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition.error_code
