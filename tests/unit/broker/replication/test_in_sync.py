"""Who is in sync: noticed by the leader, decided by the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.replication.in_sync import InSyncKeeper
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ErrorCode, NotController, UnknownTopicOrPartition
from ottla.types import LeaderEpoch
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionResult,
    TopicResult,
)
from unit.broker.test_replicas import FIRST_LIFE, OWN, SECOND, THIRD, TOPIC_ID, Node

LAG_MS = 1_000
OWN_LIFE = 5


class Keeping:
    """A leader, and a controller that says what a test wants it to say."""

    def __init__(self, answer: Callable[[AlterPartitionRequest], AlterPartitionResponse]) -> None:
        self.node = Node()
        self.asked: list[AlterPartitionRequest] = []
        self.answer = answer
        self.active = {OWN, SECOND, THIRD}
        self.keeper = InSyncKeeper(
            self.node.clock,
            OWN,
            lambda: OWN_LIFE,
            lambda: [self.node.partition],
            lambda node_id: node_id in self.active,
            lambda: LAG_MS,
            self.ask,
        )

    async def ask(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.asked.append(request)
        return self.answer(request)

    async def noticed(self) -> None:
        """Until the controller has been asked and has answered."""
        self.keeper.notice(self.node.partition)
        await self.asking

    @property
    def asking(self) -> asyncio.Task[None]:
        assert self.keeper._asking is not None
        return self.keeper._asking

    @property
    def in_sync(self) -> set[int]:
        replicas = self.node.partition.replicas
        assert replicas is not None
        return set(replicas.isr)


def as_asked(request: AlterPartitionRequest) -> AlterPartitionResponse:
    (topic,) = request.topics
    (asked,) = topic.partitions
    answer = PartitionResult(
        partition_index=asked.partition_index,
        leader_id=OWN,
        leader_epoch=asked.leader_epoch,
        isr=[state.broker_id for state in asked.new_isr_with_epochs],
        partition_epoch=asked.partition_epoch + 1,
    )
    return AlterPartitionResponse(topics=[TopicResult(TOPIC_ID, [answer])])


def refused(request: AlterPartitionRequest) -> AlterPartitionResponse:
    response = as_asked(request)
    response.topics[0].partitions[0].error_code = ErrorCode.INELIGIBLE_REPLICA
    return response


def unknown(request: AlterPartitionRequest) -> AlterPartitionResponse:
    response = as_asked(request)
    response.topics[0].partitions[0].error_code = ErrorCode.UNKNOWN_TOPIC_ID
    return response


def live(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(run())


def caught_up(keeping: Keeping) -> None:
    """The third replica has all that there is."""
    keeping.node.lead()
    keeping.node.fetched_by(SECOND, 0)
    keeping.node.fetched_by(THIRD, 0)


def test_who_has_caught_up_is_in_sync_once_the_controller_says_so() -> None:
    async def story() -> None:
        keeping = Keeping(as_asked)
        caught_up(keeping)
        await keeping.noticed()
        (request,) = keeping.asked
        assert (request.broker_id, request.broker_epoch) == (OWN, OWN_LIFE)
        (asked,) = request.topics[0].partitions
        states = [(state.broker_id, state.broker_epoch) for state in asked.new_isr_with_epochs]
        assert states == [(OWN, OWN_LIFE), (SECOND, FIRST_LIFE), (THIRD, FIRST_LIFE)]
        assert keeping.in_sync == {OWN, SECOND, THIRD}
        assert keeping.keeper.expansions == 1

    live(story)


def test_what_the_controller_refuses_stays_as_it_was_and_may_be_asked_again() -> None:
    async def story() -> None:
        keeping = Keeping(refused)
        caught_up(keeping)
        await keeping.noticed()
        assert keeping.in_sync == {OWN, SECOND}
        keeping.answer = as_asked
        await keeping.noticed()
        assert keeping.in_sync == {OWN, SECOND, THIRD}

    live(story)


@pytest.mark.parametrize("is_lost", [False, True])
def test_who_catches_up_while_another_is_being_taken_in_is_taken_in_next(is_lost: bool) -> None:
    """It may not fetch again for as long as nobody writes."""

    async def story() -> None:
        def answer(request: AlterPartitionRequest) -> AlterPartitionResponse:
            if len(keeping.asked) == 1:
                keeping.node.fetched_by(THIRD, 0)
                assert keeping.node.partition.is_misplaced(THIRD)
                keeping.keeper.notice(keeping.node.partition)
                if is_lost:
                    raise NotController("the answer is lost")
            return as_asked(request)

        keeping = Keeping(answer)
        keeping.node.lead(isr=(OWN,))
        keeping.node.fetched_by(SECOND, 0)
        await keeping.noticed()
        assert keeping.in_sync == {OWN, SECOND, THIRD}
        assert len(keeping.asked) == 2 + is_lost

    live(story)


def test_a_fenced_broker_is_not_proposed_before_it_is_back() -> None:
    async def story() -> None:
        keeping = Keeping(as_asked)
        caught_up(keeping)
        keeping.active.discard(THIRD)
        await keeping.noticed()
        assert not keeping.asked
        keeping.active.add(THIRD)
        await keeping.noticed()
        assert keeping.in_sync == {OWN, SECOND, THIRD}

    live(story)


def an_error(code: ErrorCode) -> Callable[[AlterPartitionRequest], AlterPartitionResponse]:
    def answer(request: AlterPartitionRequest) -> AlterPartitionResponse:
        response = as_asked(request)
        response.topics[0].partitions[0].error_code = code
        return response

    return answer


def lost(request: AlterPartitionRequest) -> AlterPartitionResponse:
    raise NotController("The controller does not answer.")


UNKNOWN_OUTCOMES = {
    "the answer is lost": lost,
    "a try before this one was taken": an_error(ErrorCode.INVALID_UPDATE_VERSION),
    "another controller has begun": an_error(ErrorCode.NOT_CONTROLLER),
    "nobody knows what": an_error(ErrorCode.UNKNOWN_SERVER_ERROR),
    "no answer for this one": lambda request: AlterPartitionResponse(),
}


async def asked_times(keeping: Keeping, count: int) -> None:
    while len(keeping.asked) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("outcome", UNKNOWN_OUTCOMES.values(), ids=UNKNOWN_OUTCOMES)
def test_whoever_may_be_in_sync_counts_until_the_controller_has_said_so(
    outcome: Callable[[AlterPartitionRequest], AlterPartitionResponse],
) -> None:
    async def story() -> None:
        keeping = Keeping(outcome)
        caught_up(keeping)
        keeping.keeper.notice(keeping.node.partition)
        await asked_times(keeping, 2)
        keeping.node.produce("one")
        keeping.node.flush()
        keeping.node.fetched_by(SECOND, 1)
        assert keeping.node.committed == 0, "the third may be in sync, and does not have it"
        keeping.node.fetched_by(THIRD, 1)
        assert keeping.node.committed == 1
        keeping.answer = as_asked
        await asyncio.wait_for(keeping.asking, 30)
        assert keeping.in_sync == {OWN, SECOND, THIRD}
        assert keeping.keeper.expansions == 1
        assert len({repr(request.topics) for request in keeping.asked}) == 1

    live(story)


def test_an_open_proposal_is_over_with_newer_metadata() -> None:
    async def story() -> None:
        keeping = Keeping(lost)
        caught_up(keeping)
        keeping.keeper.notice(keeping.node.partition)
        await asked_times(keeping, 1)
        keeping.node.lead(isr=(OWN, SECOND), partition_epoch=7)
        await asyncio.wait_for(keeping.asking, 30)
        replicas = keeping.node.partition.replicas
        assert replicas is not None
        assert not replicas.is_proposing

    live(story)


def test_an_open_proposal_is_of_the_life_in_which_a_replica_had_come_so_far() -> None:
    async def story() -> None:
        keeping = Keeping(lost)
        caught_up(keeping)
        keeping.keeper.notice(keeping.node.partition)
        await asked_times(keeping, 1)
        keeping.node.fetched_by(THIRD, 0, life=FIRST_LIFE + 1)
        await asked_times(keeping, 2)
        (asked,) = keeping.asked[-1].topics[0].partitions
        assert asked.new_isr_with_epochs[-1] == BrokerState(THIRD, FIRST_LIFE)
        keeping.answer = refused
        await asyncio.wait_for(keeping.asking, 30)
        assert keeping.in_sync == {OWN, SECOND}

    live(story)


def test_an_answer_for_an_epoch_that_is_over_means_nothing() -> None:
    async def story() -> None:
        keeping = Keeping(as_asked)
        caught_up(keeping)

        def too_late(request: AlterPartitionRequest) -> AlterPartitionResponse:
            keeping.node.lead(epoch=2, isr=(OWN,), partition_epoch=7)
            return as_asked(request)

        keeping.answer = too_late
        await keeping.noticed()
        assert keeping.in_sync == {OWN}
        assert keeping.node.partition.leader_epoch == LeaderEpoch(2)

    live(story)


def test_an_answer_of_a_later_leader_epoch_is_left_to_the_metadata() -> None:
    async def story() -> None:
        def of_the_next_epoch(request: AlterPartitionRequest) -> AlterPartitionResponse:
            response = as_asked(request)
            response.topics[0].partitions[0].leader_epoch += 1
            return response

        keeping = Keeping(of_the_next_epoch)
        caught_up(keeping)
        await keeping.noticed()
        assert keeping.in_sync == {OWN, SECOND}

    live(story)


def test_an_answer_that_the_metadata_has_overtaken_means_nothing() -> None:
    async def story() -> None:
        keeping = Keeping(as_asked)
        caught_up(keeping)

        def overtaken(request: AlterPartitionRequest) -> AlterPartitionResponse:
            keeping.node.lead(isr=(OWN,), partition_epoch=7)
            return as_asked(request)

        keeping.answer = overtaken
        await keeping.noticed()
        assert keeping.in_sync == {OWN}

    live(story)


def test_who_falls_back_leaves_after_a_round() -> None:
    async def story() -> None:
        keeping = Keeping(as_asked)
        keeping.node.lead()
        keeping.node.fetched_by(SECOND, 0)
        keeping.node.produce("more")
        keeping.node.clock.ms += LAG_MS + 1
        await keeping.keeper.run()
        await keeping.asking
        keeping.node.lead(isr=(OWN,), partition_epoch=1)
        assert keeping.in_sync == {OWN}
        assert keeping.keeper.shrinks == 1

    live(story)


def test_who_leaves_counts_until_the_metadata_has_brought_the_minimum_of_its_time() -> None:
    async def story() -> None:
        keeping = Keeping(as_asked)
        node = keeping.node
        node.lead()
        node.fetched_by(SECOND, 0)
        node.produce("more")
        node.flush()
        node.clock.ms += LAG_MS + 1
        await keeping.keeper.run()
        await keeping.asking
        await keeping.keeper.run()
        assert len(keeping.asked) == 1
        assert node.committed == 0, "with a minimum of 2 the controller may elect who has left"
        raised = TopicConfig.resolve(BrokerConfig(), {"min.insync.replicas": "2"})
        node.partition.configure(raised)
        node.lead(isr=(OWN,), partition_epoch=1)
        assert node.committed == 0
        assert keeping.in_sync == {OWN}

    live(story)


def test_nothing_is_asked_for_a_topic_that_is_deleted() -> None:
    async def story() -> None:
        keeping = Keeping(unknown)
        caught_up(keeping)
        keeping.keeper.notice(keeping.node.partition)
        while not keeping.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        keeping.node.partition.leave(UnknownTopicOrPartition("it is deleted"))
        await keeping.asking

    live(story)
