"""Fetch sessions: a client hears of every change, and what did not change is not looked at."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.control.metadata import MetadataCache
from ottla.broker.counters import TopicMetrics
from ottla.broker.deferred import Deferred
from ottla.broker.handlers import fetch
from ottla.broker.network.fetch_sessions import EVICTION_MS, FetchSessions
from ottla.broker.network.waiting import Deadlines, Parking
from ottla.broker.replication.throttles import Throttles
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.partition_writes import PartitionWrites
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import FetchSessionNotFound, OttlaError, UnknownTopicOrPartition
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.types import NO_NODE, LeaderEpoch, NodeId, TopicId, TopicPartition
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from records_kit import NOW_MS, batch
from unit.broker.metadata_node import HandClock, SeededRandom

OWN, OTHER = NodeId(1), NodeId(2)
TOPIC_ID = TopicId(bytes(16))
VERSION = 12
PARTITIONS = 3
LIFE = 5


class FlusherByHand:
    is_full = is_holding = is_overloaded = False

    def queue(self, partition: PartitionWrites) -> None: ...

    def want_sync(self, partition: PartitionWrites) -> None: ...

    def forget(self, partition: PartitionWrites) -> None: ...


class Here:
    """The partitions of this node, which counts who is looked for."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, Partition]] = {"t": {}}
        self.looks = 0

    def in_topic(self, name: str) -> dict[int, Partition] | None:
        self.looks += 1
        return self.topics.get(name)

    def absence_of(self, name: str, index: int) -> OttlaError:
        return UnknownTopicOrPartition(f"{name}-{index} is not here")


class Stage:
    """A leader of some partitions, with or without a follower, and what a fetch needs of it."""

    def __init__(self, *, followed: bool = False, slots: int = 10, at_once: bool = False) -> None:
        self.followed = followed
        self.here = Here()
        self.clock = HandClock()
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        self.sessions = FetchSessions(
            self.clock, SeededRandom(1), slots, tells_replicas_at_once=at_once
        )
        self.parking = Parking(asyncio.get_running_loop(), Deadlines(asyncio.get_running_loop()))
        self.services = SimpleNamespace(
            config=BrokerConfig(),
            clock=self.clock,
            loop=asyncio.get_running_loop(),
            fetch_sessions=self.sessions,
            parking=self.parking,
            partitions=self.here,
            on_misplaced=lambda partition: None,
            throttles=Throttles(self.clock, MetadataCache(BrokerConfig())),
        )
        self._made = 0
        for index in range(PARTITIONS):
            self.make(index)

    def __getitem__(self, index: int) -> Partition:
        return self.here.topics["t"][index]

    def make(self, index: int) -> None:
        self._made += 1
        name = TopicPartition("t", index)
        data = DataDirectory(self.disk, f"/data/{self._made}")
        self.disk.make_directory(f"/data/{self._made}")
        log = Log.open(self.disk, data.partition_path(name), LogConfig(), now_ms=NOW_MS, clean=True)
        home = Home(data, name, TOPIC_ID, is_durable=False)
        config = TopicConfig.resolve(BrokerConfig(), {})
        flusher: Any = FlusherByHand()
        metrics = TopicMetrics("t")
        partition = Partition(
            name, TOPIC_ID, log, LeaderEpoch(0), config, flusher, metrics, home, OWN
        )
        self.here.topics["t"][index] = partition
        self.lead(index)

    # What may happen to a partition.

    def lead(self, index: int) -> None:
        replicas = (OWN, OTHER) if self.followed else (OWN,)
        partition = self[index]
        partition.lead(LeaderEpoch(partition.leader_epoch + 1), replicas, replicas, 0, 0)

    def follow(self, index: int) -> None:
        self[index].follow(LeaderEpoch(self[index].leader_epoch + 1), NO_NODE)

    def append(self, index: int) -> None:
        partition = self[index]
        if not partition.is_leader or partition.is_fenced:
            return
        partition.append(batch(b"value"), NOW_MS)
        partition.write_queued()

    def sync(self, index: int) -> None:
        partition = self[index]
        ticket = partition.begin_sync() if not partition.is_fenced else None
        if ticket is not None:
            self.disk.sync_many(ticket.files, ticket.directories)
            partition.finish_sync(ticket)

    def shorten(self, index: int) -> None:
        self[index].delete_before(self[index].high_watermark.offset)

    def lose(self, index: int) -> None:
        self[index].go_offline(OSError(errno.EIO, "broken"))

    def make_anew(self, index: int) -> None:
        before = self[index]
        self.make(index)
        before.leave(UnknownTopicOrPartition("deleted"))

    def remove_follower(self, index: int) -> None:
        """Under the same leader epoch."""
        partition = self[index]
        if partition.is_leader and partition.replicas is not None:
            epoch = partition.replicas.partition_epoch + 1
            partition.lead(partition.leader_epoch, (OWN,), (OWN,), epoch, 0)

    def suspend(self, index: int) -> None:
        self[index].suspend()

    def resume(self, index: int) -> None:
        self[index].resume()

    def is_watched(self, index: int) -> bool:
        waiters = self[index].waiters
        return bool(waiters.fetches or waiters.replica_fetches)


class Client:
    """Reads by a session as clients do: names what moved, and believes what it is told."""

    def __init__(self, stage: Stage, replica: int = -1) -> None:
        self.stage = stage
        self.replica = replica
        self.memory: dict[Any, Any] = {}
        self.session_id = self.session_epoch = 0
        self.asked: dict[int, FetchPartition] = {}
        self.named: dict[int, None] = {}
        # By partition the error, high watermark and start that it knows of.
        self.known: dict[int, tuple[int, int, int]] = {}

    def want(self, index: int, offset: int, epoch: int = -1) -> None:
        self.asked[index] = FetchPartition(
            index,
            fetch_offset=offset,
            current_leader_epoch=epoch,
            partition_max_bytes=1_000_000,
        )
        self.named[index] = None

    def handle(self, request: FetchRequest) -> Any:
        context = RequestContext(1, VERSION, 0, None, "", "", self.memory)
        return fetch.handle(cast(Services, self.stage.services), context, request)

    def send(self, forgotten: tuple[int, ...] = (), **options: Any) -> Any:
        """A fetch that names what moved; a response, or something that will have it."""
        named = [self.asked[index] for index in self.named]
        self.named = {}
        options.setdefault("min_bytes", 1)
        options.setdefault("max_bytes", 1_000_000)
        request = FetchRequest(
            replica_id=self.replica,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=[FetchTopic("t", partitions=named)] if named else [],
            forgotten_topics_data=[ForgottenTopic("t", partitions=list(forgotten))],
            **options,
        )
        return self.handle(request)

    def take(self, response: Any) -> dict[int, Any]:
        """The answers by partition."""
        assert response.error_code == 0
        self.session_id = response.session_id
        self.session_epoch += 1
        answers = {
            answer.partition_index: answer
            for topic in response.responses
            for answer in topic.partitions
        }
        for index, answer in answers.items():
            self.known[index] = (
                answer.error_code,
                answer.high_watermark,
                answer.log_start_offset,
            )
        return answers

    def fetch(self, **options: Any) -> dict[int, Any]:
        return self.take(self.send(**options))

    def truth(self, index: int) -> Any:
        """What a fetch without a session is told of this partition."""
        request = FetchRequest(
            replica_id=self.replica,
            session_epoch=-1,
            min_bytes=1,
            max_bytes=1_000_000,
            topics=[FetchTopic("t", partitions=[self.asked[index]])],
        )
        return self.handle(request).responses[0].partitions[0]


def in_a_loop(story: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            async with asyncio.timeout(60):
                await story()

        asyncio.run(run())

    test.__name__ = story.__name__
    return test


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def opened(stage: Stage, replica: int = -1) -> Client:
    """A client at the end of all partitions, which knows that it is."""
    client = Client(stage, replica)
    for index in range(PARTITIONS):
        client.want(index, 0)
    client.fetch()
    assert client.session_id != 0
    return client


# ---------------------------------------------------------------------- what a client comes to know

HAPPENINGS = (
    "append",
    "append",
    "sync",
    "sync",
    "shorten",
    "lead",
    "follow",
    "make_anew",
    "remove_follower",
    "suspend",
    "resume",
    "lose",
)
acts = st.tuples(
    st.sampled_from([*HAPPENINGS, "read", "read", "fetch", "fetch", "forget"]),
    st.integers(0, PARTITIONS - 1),
)


def check_against_the_truth(client: Client, answers: dict[int, Any]) -> None:
    for index in client.asked:
        truth, told = client.truth(index), answers.get(index)
        if truth.records or truth.error_code:
            assert told is not None, f"{index} has {truth} and is not told"
            assert told.error_code == truth.error_code
            assert bytes(told.records or b"") == bytes(truth.records or b"")
        else:
            expected = (0, truth.high_watermark, truth.log_start_offset)
            assert client.known[index] == expected, f"of {index} the client knows the past"


@settings(max_examples=250, derandomize=True, deadline=None, database=None)
@given(
    story=st.lists(acts, max_size=40),
    followed=st.booleans(),
    replica=st.sampled_from([-1, int(OTHER)]),
)
def test_a_client_hears_of_all_that_it_would_have_found_without_a_session(
    story: list[tuple[str, int]], followed: bool, replica: int
) -> None:
    async def run() -> None:
        stage = Stage(followed=followed)
        client = opened(stage, replica)
        answers: dict[int, Any] = {}
        for act, index in [*story, ("fetch", 0)]:
            if act == "read":
                partition = stage[index]
                end = partition.written_offset if replica >= 0 else partition.high_watermark.offset
                client.want(index, end, partition.leader_epoch)
            elif act == "forget":
                if index in client.asked and len(client.asked) > 1:
                    client.named.pop(index, None)
                    del client.asked[index]
                    answers = client.fetch(forgotten=(index,))
                    assert index not in answers
            elif act == "fetch":
                answers = client.fetch()
                check_against_the_truth(client, answers)
            else:
                getattr(stage, act)(index)
        stage.sessions.close(client.session_id)
        assert not any(stage.is_watched(index) for index in range(PARTITIONS))

    asyncio.run(run())


# ------------------------------------------------------------------------- what is not looked at


@pytest.mark.parametrize("replica", [-1, OTHER])
def test_what_has_not_changed_is_not_looked_at(replica: int) -> None:
    async def story() -> None:
        stage = Stage(followed=True)
        client = opened(stage, replica)
        looks = stage.here.looks
        for _ in range(3):
            assert client.fetch() == {}
        assert stage.here.looks == looks
        stage.append(1)
        stage.sync(1)
        stage[1].fetched_by(OTHER, LIFE, 1, 0)
        assert list(client.fetch()) == [1]
        assert stage.here.looks == looks + 1

    asyncio.run(story())


@pytest.mark.parametrize("replica", [-1, OTHER])
def test_a_start_that_moved_is_told_to_whoever_reads_at_the_end(replica: int) -> None:
    async def story() -> None:
        stage = Stage(followed=replica >= 0)
        client = opened(stage, replica)
        stage.append(0)
        stage.sync(0)
        client.want(0, 1)
        client.fetch()
        assert client.fetch() == {}
        stage.shorten(0)
        assert client.fetch()[0].log_start_offset == 1

    asyncio.run(story())


def test_a_follower_is_told_the_high_watermark_again_in_another_epoch() -> None:
    async def story() -> None:
        stage = Stage(followed=True)
        client = opened(stage, OTHER)
        stage.append(0)
        stage.sync(0)
        client.want(0, 1)
        assert client.fetch()[0].high_watermark == 1
        assert client.fetch() == {}
        client.want(0, 1, stage[0].leader_epoch)
        assert client.fetch()[0].high_watermark == 1

    asyncio.run(story())


@in_a_loop
async def test_a_waiting_session_is_woken_by_what_was_quiet() -> None:
    stage = Stage()
    client = opened(stage)
    waiting = client.send(max_wait_ms=20_000)
    assert isinstance(waiting, Deferred)
    told: list[Any] = []
    waiting.when_resolved(told.append)
    stage.append(2)
    await settle()
    assert not told
    stage.sync(2)
    await settle()
    (response,) = told
    assert list(client.take(response)) == [2]
    assert len(stage.parking.deadlines) == 0


@in_a_loop
async def test_a_waiting_session_counts_the_bytes_of_all_that_it_reads() -> None:
    stage = Stage()
    client = opened(stage)
    size = len(batch(b"value"))
    waiting = client.send(max_wait_ms=20_000, min_bytes=2 * size)
    told: list[Any] = []
    waiting.when_resolved(told.append)
    for index in (0, 2):
        assert not told
        stage.append(index)
        stage.sync(index)
        await settle()
    assert sorted(client.take(told[0])) == [0, 2]


@in_a_loop
async def test_a_second_fetch_of_a_session_ends_the_first() -> None:
    stage = Stage()
    client = opened(stage)
    told: list[Any] = []
    for _ in range(2):
        waiting = client.send(max_wait_ms=20_000)
        client.session_epoch += 1
        waiting.when_resolved(told.append)
    await settle()
    assert len(told) == 1
    stage.append(0)
    stage.sync(0)
    await settle()
    assert len(told) == 2


@in_a_loop
async def test_nobody_starves_where_a_reply_is_full() -> None:
    stage = Stage()
    client = opened(stage)
    size = len(batch(b"value"))
    for index in range(PARTITIONS):
        for _ in range(3):
            stage.append(index)
        stage.sync(index)
    got = []
    for _ in range(2 * PARTITIONS):
        # The client never asks for what comes next, so everything stays to be told.
        answers = client.fetch(max_bytes=size)
        got += [index for index, answer in answers.items() if answer.records]
    assert sorted(got[:PARTITIONS]) == sorted(got[PARTITIONS:]) == list(range(PARTITIONS))


@in_a_loop
async def test_a_full_reply_says_nothing_of_those_whose_turn_comes_next() -> None:
    stage = Stage()
    client = opened(stage)
    for index in range(PARTITIONS):
        stage.append(index)
        stage.sync(index)
    size = len(batch(b"value"))
    turns = [list(client.fetch(max_bytes=size)) for _ in range(PARTITIONS)]
    assert turns == [[0], [1], [2]]


@in_a_loop
async def test_what_does_not_fit_is_not_read_for_one_partition_after_the_other() -> None:
    stage = Stage()
    client = opened(stage)
    for index in range(PARTITIONS):
        stage.append(index)
        stage.sync(index)
    reads = stage.disk.reads
    given = client.fetch(max_bytes=len(batch(b"value")) + 1)
    assert [bool(answer.records) for answer in given.values()] == [True, False]
    assert stage.disk.reads == reads + 2


# ---------------------------------------------------------------------------------- followers


@in_a_loop
async def test_a_follower_hears_of_the_last_commit_without_another_write() -> None:
    stage = Stage(followed=True)
    follower = opened(stage, OTHER)
    stage.append(0)
    stage.sync(0)
    assert follower.fetch()[0].high_watermark == 0
    follower.want(0, 1)
    answers = follower.fetch()
    assert stage[0].high_watermark.offset == 1
    assert answers[0].high_watermark == 1
    assert follower.fetch() == {}


@pytest.mark.parametrize("at_once", [False, True])
def test_a_waiting_follower_hears_of_commits_at_once_where_consumers_read_from_it(
    at_once: bool,
) -> None:
    async def story() -> None:
        stage = Stage(followed=True, at_once=at_once)
        follower = opened(stage, OTHER)
        told: list[Any] = []
        stage.append(0)
        follower.fetch()
        follower.want(0, 1)
        waiting = follower.send(max_wait_ms=20_000)
        waiting.when_resolved(told.append)
        stage.sync(0)
        await settle()
        assert stage[0].high_watermark.offset == 1
        assert len(told) == at_once
        stage.parking.deadlines.close()

    asyncio.run(story())


@pytest.mark.parametrize("at_once", [False, True])
def test_what_was_committed_meanwhile_does_not_wait_where_consumers_read_from_followers(
    at_once: bool,
) -> None:
    async def story() -> None:
        stage = Stage(followed=True, at_once=at_once)
        follower = opened(stage, OTHER)
        stage.append(0)
        stage.sync(0)
        follower.fetch()
        follower.want(0, 1)
        answered = follower.send(max_wait_ms=20_000)
        assert isinstance(answered, Deferred) is not at_once
        stage.parking.deadlines.close()

    asyncio.run(story())


@in_a_loop
async def test_without_a_selector_nobody_is_sent_elsewhere() -> None:
    stage = Stage(followed=True)
    client = Client(stage)
    client.want(0, 0)
    assert client.fetch(rack_id="anywhere")[0].preferred_read_replica == -1


# --------------------------------------------------------------------------------- who goes


@in_a_loop
async def test_a_lost_connection_takes_its_sessions_with_it() -> None:
    stage = Stage()
    client, other = opened(stage), opened(stage)
    stage.sessions.lost(client.memory)
    assert len(stage.sessions) == 1
    with pytest.raises(FetchSessionNotFound):
        client.send()
    stage.sessions.lost(other.memory)
    assert len(stage.sessions) == 0
    assert not stage.is_watched(0)


@in_a_loop
async def test_a_session_that_moved_to_another_connection_outlives_the_first() -> None:
    stage = Stage()
    client = opened(stage)
    before, client.memory = client.memory, {}
    client.fetch()
    stage.sessions.lost(before)
    assert len(stage.sessions) == 1
    client.fetch()
    stage.sessions.lost(client.memory)
    assert len(stage.sessions) == 0


@in_a_loop
async def test_the_longest_unused_session_makes_room_and_watches_nothing_more() -> None:
    stage = Stage(slots=1)
    opened(stage)
    late = Client(stage)
    late.want(1, 0)
    late.fetch()
    assert late.session_id == 0, "the other was used just now"
    stage.clock.ms += EVICTION_MS
    late.session_epoch = 0
    late.want(1, 0)
    late.fetch()
    assert late.session_id != 0
    assert not stage.is_watched(0)
    assert stage.is_watched(1)


@in_a_loop
async def test_a_follower_finds_room_among_consumers_but_not_among_followers() -> None:
    stage = Stage(slots=1, followed=True)
    opened(stage)
    follower = opened(stage, OTHER)
    assert len(stage.sessions) == 1
    third = Client(stage, 3)
    third.want(0, 0)
    third.fetch()
    assert third.session_id == 0
    assert follower.fetch() == {}
