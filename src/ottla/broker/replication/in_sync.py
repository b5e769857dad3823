"""Asks the controller who is in sync, where a leader finds that it should be somebody else.

Followers that come up to the high watermark are noticed as they fetch, those that fall back by a
look at all partitions that this node leads, every half of `replica.lag.time.max.ms`. One request
is under way at a time, with all that is to be changed then. The controller's word counts: what it
refuses stays as it was, and is proposed again at the next occasion if it is still so.

An answer that does not come, or says that things have moved on, leaves open whether the change was
made: a try before it may have been taken. Such a proposal stands, and with it everybody counts who
is in sync before or after it, until the controller has answered or the metadata has overtaken it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.replicas import ReplicaSet
from ottla.errors import ErrorCode, OttlaError
from ottla.ports import Clock
from ottla.types import LeaderEpoch
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionResult,
    TopicData,
)

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition

logger = logging.getLogger(__name__)

# So many are looked at, then requests have their turn.
PARTITIONS_AT_ONCE: Final = 256
PARTITIONS_PER_REQUEST_MAX: Final = 2_000
RETRY_PAUSE_S: Final = 0.25
RETRY_PAUSE_S_MAX: Final = 2.0
# The only refusal that says that no controller has made the change, nor can (as in Kafka).
NEVER_MADE: Final = ErrorCode.INELIGIBLE_REPLICA

AskController = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]


class Proposal(NamedTuple):
    """Made to the controller in one partition epoch; in another it means nothing."""

    partition: Partition
    replicas: ReplicaSet
    leader_epoch: LeaderEpoch
    partition_epoch: int
    members: Sequence[BrokerState]

    @property
    def is_current(self) -> bool:
        """Whether the partition still leads as it did, and waits for this answer."""
        replicas = self.replicas
        return (
            self.partition.replicas is replicas
            and not self.partition.is_retired
            and replicas.partition_epoch == self.partition_epoch
            and replicas.is_proposing
        )


def _is_proposing(partition: Partition) -> bool:
    replicas = partition.replicas
    return replicas is not None and replicas.is_proposing and not partition.is_retired


class InSyncKeeper:
    """Implements `Chore`: a round looks for followers that lag."""

    name = "in-sync"

    def __init__(
        self,
        clock: Clock,
        node_id: int,
        broker_epoch: Callable[[], int],
        led: Callable[[], Iterable[Partition]],
        is_active: Callable[[int], bool],
        lag_ms_max: Callable[[], int],
        ask: AskController,
        lease_ms_max: int = 0,
    ) -> None:
        """`lease_ms_max` is how long others may take themselves for leaders (ADR 0011)."""
        self._clock = clock
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._led = led
        self._is_active = is_active
        self._lag_ms_max = lag_ms_max
        self._ask = ask
        self._lease_ms_max = lease_ms_max
        self._noticed: dict[Partition, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._is_noticed = asyncio.Event()
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
        if _is_proposing(partition):
            # It is looked at again with the answer: who has come up may not fetch for long.
            return
        self._is_noticed.set()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_all())

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))

    def _proposal(self, partition: Partition) -> frozenset[int] | None:
        now_ms = self._clock.now().steady_ms
        wanted = partition.wanted_isr(now_ms, self._lag_ms_max(), self._lease_ms_max)
        replicas = partition.replicas
        if wanted is None or replicas is None:
            return None
        # The controller would refuse a broker that is fenced: it joins when it is back.
        wanted = frozenset(each for each in wanted if each in replicas.isr or self._is_active(each))
        return None if wanted == replicas.isr else wanted

    async def _ask_all(self) -> None:
        await asyncio.sleep(0)
        open_ones: list[Proposal] = []
        pause_s = RETRY_PAUSE_S
        while True:
            open_ones = [proposal for proposal in open_ones if proposal.is_current]
            news = self._news(PARTITIONS_PER_REQUEST_MAX - len(open_ones))
            if not open_ones and not news:
                return
            asked = [*open_ones, *news]
            try:
                left = await self._ask_for(asked)
            except Exception:
                # Forgotten proposals would keep everything as it is for ever.
                logger.exception("changes of in-sync replicas failed")
                left = asked
            if left:
                # New ones do not wait for those that have to be asked for again.
                await self._pause(pause_s)
            pause_s = min(2 * pause_s, RETRY_PAUSE_S_MAX) if left else RETRY_PAUSE_S
            open_ones = left

    def _news(self, count_max: int) -> list[Proposal]:
        proposed: list[Proposal] = []
        for partition in tuple(self._noticed):
            if len(proposed) == count_max:
                break
            if _is_proposing(partition):
                continue
            del self._noticed[partition]
            wanted = self._proposal(partition)
            if wanted is not None:
                proposed.append(self._propose(partition, wanted))
        return proposed

    async def _pause(self, seconds: float) -> None:
        """Whoever is noticed ends it."""
        self._is_noticed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._is_noticed.wait()
        except TimeoutError:
            pass

    def _propose(self, partition: Partition, wanted: frozenset[int]) -> Proposal:
        replicas = partition.replicas
        assert replicas is not None
        self.shrinks += bool(replicas.isr - wanted)
        self.expansions += bool(wanted - replicas.isr)
        logger.info(
            "%s: in sync are to be %s, not %s", partition.name, sorted(wanted), sorted(replicas.isr)
        )
        replicas.propose(wanted)
        # The lives in which they have come so far: asked again, a later one has not.
        members = [BrokerState(each, replicas.broker_epoch(each)) for each in sorted(wanted)]
        return Proposal(
            partition, replicas, partition.leader_epoch, replicas.partition_epoch, members
        )

    async def _ask_for(self, proposed: list[Proposal]) -> list[Proposal]:
        """Returns those of which nobody knows yet what became."""
        try:
            response = await self._ask(self._request(proposed))
        except (OttlaError, OSError) as error:
            logger.warning("the controller takes no changes of in-sync replicas: %s", error)
            return proposed
        answers = {
            (topic.topic_id, answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        left: list[Proposal] = []
        for proposal in proposed:
            partition = proposal.partition
            answer = answers.get((partition.topic_id, partition.index))
            if not proposal.is_current:
                continue
            if answer is not None and answer.error_code == NEVER_MADE:
                proposal.replicas.withdraw()
            elif answer is None or answer.error_code:
                left.append(proposal)
            elif answer.leader_epoch == proposal.leader_epoch:
                self._decided(proposal, answer)
        return left

    def _decided(self, proposal: Proposal, answer: PartitionResult) -> None:
        """The metadata will say the same, or more. Who leaves still counts until then: it brings
        the minimum that the controller went by, which may be higher than the one known here.
        """
        if proposal.replicas.isr - frozenset(answer.isr):
            return
        now_ms = self._clock.now().steady_ms
        proposal.partition.lead(
            proposal.leader_epoch,
            proposal.replicas.replicas,
            answer.isr,
            answer.partition_epoch,
            now_ms,
        )

    def _request(self, proposed: list[Proposal]) -> AlterPartitionRequest:
        topics: dict[bytes, TopicData] = {}
        broker_epoch = self._broker_epoch()
        for partition, _, leader_epoch, partition_epoch, members in proposed:
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = TopicData(topic_id=partition.topic_id)
            own = BrokerState(self._node_id, broker_epoch)
            topic.partitions.append(
                PartitionData(
                    partition_index=partition.index,
                    leader_epoch=leader_epoch,
                    new_isr_with_epochs=[
                        own if member.broker_id == self._node_id else member for member in members
                    ],
                    partition_epoch=partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=broker_epoch, topics=list(topics.values())
        )
