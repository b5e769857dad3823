"""Asks the controller who is in sync, where a leader finds that it should be somebody else.

Followers that come up to the high watermark are noticed as they fetch, those that fall back by a
look at all partitions that this node leads, every half of `replica.lag.time.max.ms`. One request
is under way at a time, with all that is to be changed then. The controller's word counts: what it
refuses stays as it was, and is proposed again at the next occasion if it is still so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.replicas import ReplicaSet
from ottla.errors import ErrorCode, OttlaError
from ottla.ports import Clock
from ottla.types import LeaderEpoch, Offset
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition

logger = logging.getLogger(__name__)

# So many are looked at, then requests have their turn.
PARTITIONS_AT_ONCE: Final = 256
PARTITIONS_PER_REQUEST_MAX: Final = 2_000
RETRY_PAUSE_S: Final = 0.25

AskController = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]


class Proposal(NamedTuple):
    """Made to the controller under one leader epoch; under another it means nothing."""

    partition: Partition
    replicas: ReplicaSet
    leader_epoch: LeaderEpoch
    wanted: frozenset[int]

    @property
    def is_current(self) -> bool:
        """Whether the partition still leads as it did, and waits for this answer."""
        return self.partition.replicas is self.replicas and self.replicas.is_proposing


class InSyncKeeper:
    """Implements `Chore`: a round looks for followers that lag."""

    name = "in-sync"

    def __init__(
        self,
        clock: Clock,
        node_id: int,
        broker_epoch: Callable[[], int],
        led: Callable[[], Iterable[Partition]],
        lag_ms_max: Callable[[], int],
        ask: AskController,
    ) -> None:
        self._clock = clock
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._led = led
        self._lag_ms_max = lag_ms_max
        self._ask = ask
        self._noticed: dict[Partition, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self.shrinks = 0
        self.expansions = 0

    @property
    def pause_s(self) -> float:
        return self._lag_ms_max() / 2000

    async def run(self) -> None:
        for count, partition in enumerate(tuple(self._led())):
            if count % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if self._proposal(partition) is not None:
                self.notice(partition)

    def notice(self, partition: Partition) -> None:
        """Somebody may have to join or leave; the controller is asked when this turn is over."""
        self._noticed[partition] = None
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_all())

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))

    def _proposal(self, partition: Partition) -> frozenset[int] | None:
        replicas = partition.replicas
        if replicas is None:
            return None
        ends = (Offset(partition.end_offset), Offset(partition.reached_offset))
        return replicas.proposal(*ends, self._clock.now().steady_ms, self._lag_ms_max())

    async def _ask_all(self) -> None:
        await asyncio.sleep(0)
        while self._noticed:
            proposed: list[Proposal] = []
            while self._noticed and len(proposed) < PARTITIONS_PER_REQUEST_MAX:
                partition = next(iter(self._noticed))
                del self._noticed[partition]
                wanted = self._proposal(partition)
                if wanted is not None:
                    proposed.append(self._propose(partition, wanted))
            if proposed:
                await self._ask_for(proposed)

    def _propose(self, partition: Partition, wanted: frozenset[int]) -> Proposal:
        replicas = partition.replicas
        assert replicas is not None
        self.shrinks += bool(replicas.isr - wanted)
        self.expansions += bool(wanted - replicas.isr)
        logger.info(
            "%s: in sync are to be %s, not %s", partition.name, sorted(wanted), sorted(replicas.isr)
        )
        replicas.propose(wanted)
        return Proposal(partition, replicas, partition.leader_epoch, wanted)

    async def _ask_for(self, proposed: list[Proposal]) -> None:
        failure: str | None = None
        try:
            response = await self._ask(self._request(proposed))
        except (OttlaError, OSError) as error:
            failure, response = str(error), AlterPartitionResponse()
        except asyncio.CancelledError:
            _withdraw(proposed)
            raise
        if response.error_code:
            failure = ErrorCode(response.error_code).name
        if failure is None:
            self._take(proposed, response)
            return
        logger.warning("the controller takes no changes of in-sync replicas: %s", failure)
        _withdraw(proposed)
        await asyncio.sleep(RETRY_PAUSE_S)

    def _take(self, proposed: list[Proposal], response: AlterPartitionResponse) -> None:
        answers = {
            (topic.topic_id, answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        for proposal in proposed:
            partition = proposal.partition
            answer = answers.get((partition.topic_id, partition.index))
            if answer is None or answer.error_code:
                _withdraw([proposal])
            elif proposal.is_current and answer.leader_epoch == proposal.leader_epoch:
                self._decided(proposal, answer.isr, answer.partition_epoch)

    def _decided(self, proposal: Proposal, isr: list[int], partition_epoch: int) -> None:
        """The metadata will say the same, or has already said more."""
        replicas = proposal.replicas
        if partition_epoch > replicas.partition_epoch:
            now_ms = self._clock.now().steady_ms
            proposal.partition.lead(
                proposal.leader_epoch, replicas.replicas, isr, partition_epoch, now_ms
            )

    def _request(self, proposed: list[Proposal]) -> AlterPartitionRequest:
        topics: dict[bytes, TopicData] = {}
        broker_epoch = self._broker_epoch()
        for partition, replicas, leader_epoch, wanted in proposed:
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = TopicData(topic_id=partition.topic_id)
            topic.partitions.append(
                PartitionData(
                    partition_index=partition.index,
                    leader_epoch=leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(
                            replica,
                            broker_epoch
                            if replica == self._node_id
                            else replicas.broker_epoch(replica),
                        )
                        for replica in sorted(wanted)
                    ],
                    partition_epoch=replicas.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=broker_epoch, topics=list(topics.values())
        )


def _withdraw(proposed: Iterable[Proposal]) -> None:
    for proposal in proposed:
        if proposal.is_current:
            proposal.replicas.withdraw()
