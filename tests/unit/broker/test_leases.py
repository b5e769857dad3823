"""A lease ends before anybody can have begun in one's place, and only a majority gives one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.broker.control.confirmations import Confirmations
from ottla.broker.control.lease import Lease
from ottla.broker.control.lifecycle import Lifecycle
from ottla.broker.control.metadata import MetadataCache
from ottla.broker.control.predecessors import Predecessors
from ottla.cluster.sessions import Predecessor
from ottla.config import BrokerConfig
from ottla.errors import NotController
from ottla.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from unit.broker.metadata_node import HandClock

SESSION_MS = 9_000


class Leasing:
    def __init__(self, *, is_needed: bool = True, session_ms: int = SESSION_MS) -> None:
        self.clock = HandClock()
        self.is_needed = is_needed
        self.changes: list[bool] = []
        self.watched = 0
        self.lease = Lease(
            asyncio.get_running_loop(),
            self.clock,
            session_ms,
            lambda: self.is_needed,
            self.watch,
            lambda: self.changes.append(self.lease.is_held),
        )

    def watch(self) -> None:
        self.watched += 1

    def after(self, ms: int) -> bool:
        self.clock.ms += ms
        self.lease.look()
        return self.lease.is_held


def live(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(run())


def test_a_lease_counts_from_when_the_heartbeat_was_sent_and_ends_before_the_session() -> None:
    async def story() -> None:
        leasing = Leasing()
        assert not leasing.lease.is_held, "nobody has given one yet"
        sent_s = leasing.clock.steady_s()
        leasing.clock.ms += 1_000
        leasing.lease.extend(sent_s)
        assert leasing.after(7_549)
        assert not leasing.after(1)
        assert leasing.changes == [True, False]
        leasing.lease.close()

    live(story)


def test_each_answer_extends_it_and_an_old_one_does_not_shorten_it() -> None:
    async def story() -> None:
        leasing = Leasing()
        first_s = leasing.clock.steady_s()
        leasing.lease.extend(first_s)
        leasing.clock.ms += 2_000
        leasing.lease.extend(leasing.clock.steady_s())
        leasing.lease.extend(first_s)
        assert leasing.after(8_000)
        assert leasing.changes == [True]
        assert leasing.watched == 1
        leasing.lease.close()

    live(story)


def test_an_answer_that_comes_too_late_gives_nothing() -> None:
    async def story() -> None:
        leasing = Leasing()
        sent_s = leasing.clock.steady_s()
        leasing.clock.ms += SESSION_MS
        leasing.lease.extend(sent_s)
        assert not leasing.lease.is_held

    live(story)


def test_the_only_voter_has_nothing_to_lose_until_there_are_others() -> None:
    async def story() -> None:
        leasing = Leasing(is_needed=False)
        assert leasing.lease.is_held
        assert leasing.after(10 * SESSION_MS)
        leasing.lease.lose()
        leasing.lease.extend(leasing.clock.steady_s())
        assert (leasing.lease.is_held, leasing.watched) == (True, 0)
        leasing.is_needed = True
        leasing.lease.extend(leasing.clock.steady_s())
        assert leasing.watched == 1
        assert not leasing.after(SESSION_MS)
        leasing.lease.close()

    live(story)


def test_a_lease_that_nobody_looks_at_ends_by_itself() -> None:
    async def story() -> None:
        leasing = Leasing(session_ms=20)
        leasing.lease.extend(leasing.clock.steady_s())
        leasing.clock.ms += 20
        while leasing.lease.is_held:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert leasing.changes == [True, False]

    live(story)


class SlowController:
    """It takes a heartbeat at once, and its answer takes a while."""

    def __init__(self, clock: HandClock, answer_ms: int) -> None:
        self._clock = clock
        self._answer_ms = answer_ms
        self.is_fenced = False
        self.on_asked: Callable[[Any], None] = lambda _: None

    async def ask(self, request: object, *_: object) -> BrokerHeartbeatResponse:
        self.on_asked(request)
        self._clock.ms += self._answer_ms
        return BrokerHeartbeatResponse(is_fenced=self.is_fenced)


def a_life(leasing: Leasing, controller: SlowController) -> Lifecycle:
    config = BrokerConfig()
    channel: Any = controller
    metadata = MetadataCache(config)
    return Lifecycle(
        config, "c", bytes(16), -1, channel, metadata, lambda: 0, leasing.clock, leasing.lease
    )


def test_a_heartbeat_gives_a_lease_from_when_it_was_sent_and_a_fenced_broker_none() -> None:
    async def story() -> None:
        leasing = Leasing()
        controller = SlowController(leasing.clock, answer_ms=3_000)
        life = a_life(leasing, controller)
        await life._beat()
        assert leasing.after(5_549)
        assert not leasing.after(1), "8.55 s after it was sent"
        await life._beat()
        assert leasing.lease.is_held
        controller.is_fenced = True
        await life._beat()
        assert not leasing.lease.is_held
        leasing.lease.close()

    live(story)


def test_what_a_controller_answers_its_own_broker_is_good_for_less() -> None:
    async def story() -> None:
        leasing = Leasing()
        controller = SlowController(leasing.clock, answer_ms=0)
        life = a_life(leasing, controller)
        controller.on_asked = life.asked_here
        await life._beat()
        assert leasing.after(5_699)
        assert not leasing.after(1), "5.7 s after it was sent"
        controller.on_asked = lambda _: None
        await life._beat()
        assert leasing.after(8_549), "another controller's answer"
        leasing.lease.close()

    live(story)


class Led:
    """Who leads the metadata, as this node, which is number 1, hears of it."""

    leader_id, leader_epoch = -1, 0

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.on_leader_change = self.listeners.append

    @property
    def is_leader(self) -> bool:
        return self.leader_id == 1

    def by(self, leader: int, epoch: int) -> None:
        self.leader_id, self.leader_epoch = leader, epoch
        for listener in self.listeners:
            listener()


def test_the_controller_before_is_known_once_and_only_if_no_epoch_lies_between() -> None:
    clock, led = HandClock(), Led()
    leadership: Any = led
    predecessors = Predecessors(leadership, clock)
    led.by(1, 5)
    assert predecessors.take() is None, "nobody was followed"
    led.by(2, 6)
    heard_ms = clock.now().steady_ms
    clock.ms += 700
    led.by(2, 6)
    led.by(-1, 7)
    led.by(1, 7)
    assert predecessors.take() == Predecessor(2, heard_ms)
    assert predecessors.take() is None, "it may have been answered meanwhile"
    led.by(3, 8)
    led.by(1, 10)
    assert predecessors.take() is None, "somebody may have led epoch 9"


class Voters:
    """Others who fetch; each connection remembers."""

    def __init__(self, *others: int) -> None:
        self.woken = 0
        self.confirmations = Confirmations(lambda: others, self.wake)
        self.memories: dict[int, dict[Any, Any]] = {other: {} for other in others}

    def wake(self) -> None:
        self.woken += 1

    async def asked(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.confirmations.confirmed())
        await asyncio.sleep(0)
        return task

    def fetch(self, voter: int) -> None:
        self.confirmations.fetched(voter, self.memories[voter])

    def answer(self, voter: int) -> None:
        self.confirmations.answered(self.memories[voter])


async def is_confirmed(task: asyncio.Task[None]) -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return task.done()


def test_the_only_voter_confirms_itself() -> None:
    async def story() -> None:
        await Voters().confirmations.confirmed()

    live(story)


def test_only_a_fetch_that_was_sent_after_the_question_confirms() -> None:
    async def story() -> None:
        voters = Voters(2, 3)
        voters.fetch(2)
        voters.answer(2)
        task = await voters.asked()
        assert voters.woken == 1
        voters.fetch(2)
        assert not await is_confirmed(task), "it may have been sent before"
        assert voters.confirmations.is_awaited(voters.memories[2])
        voters.answer(2)
        assert not voters.confirmations.is_awaited(voters.memories[2])
        voters.fetch(2)
        assert await is_confirmed(task)

    live(story)


def test_another_connection_of_a_voter_knows_nothing_of_the_question() -> None:
    """What was sent on it may have been on its way for long."""

    async def story() -> None:
        voters = Voters(2, 3)
        task = await voters.asked()
        voters.answer(2)
        voters.memories[2] = {}
        voters.fetch(2)
        assert not await is_confirmed(task)
        task.cancel()

    live(story)


def test_a_majority_of_five_takes_two_others() -> None:
    async def story() -> None:
        voters = Voters(2, 3, 4, 5)
        task = await voters.asked()
        for voter in (2, 3):
            assert not await is_confirmed(task)
            voters.answer(voter)
            voters.fetch(voter)
        assert await is_confirmed(task)

    live(story)


def test_who_asks_later_waits_for_later_fetches() -> None:
    async def story() -> None:
        voters = Voters(2, 3)
        first = await voters.asked()
        voters.answer(2)
        second = await voters.asked()
        voters.fetch(2)
        assert await is_confirmed(first)
        assert not await is_confirmed(second)
        voters.answer(2)
        voters.fetch(2)
        assert await is_confirmed(second)

    live(story)


def test_who_leads_no_more_confirms_nothing() -> None:
    async def story() -> None:
        voters = Voters(2, 3)
        task = await voters.asked()
        voters.confirmations.lost()
        with pytest.raises(NotController):
            await task

    live(story)
