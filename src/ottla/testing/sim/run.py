"""One run of a seed: a cluster under load, its troubles, its rest, and what was found there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Final, TypeVar

from ottla.client.producer import ACKS_ALL, Producer
from ottla.errors import OttlaError
from ottla.testing.sim.checkers import Broken, Outcome, check_all
from ottla.testing.sim.history import History, TopicState
from ottla.testing.sim.observing import (
    Observer,
    final_logs,
    metadata_facts,
    topics_found,
    what_is_stuck,
)
from ottla.testing.sim.troubles import KINDS, Calm, Trouble, Troubles, plan
from ottla.testing.sim.workloads import (
    Administrator,
    Elector,
    EndWatcher,
    IdempotentProducer,
    Member,
    Mover,
    PlainProducer,
    QuorumChanger,
    Reader,
    Stage,
)
from ottla.testing.sim.workloads.administrator import create_topic
from ottla.testing.sim.workloads.producers import Package
from ottla.testing.sim.world import World
from ottla.types import OFFSETS_TOPIC, TopicPartition
from ottla.wire.records import Record, encode_batch

T = TypeVar("T")

TROUBLED_S: Final = 40.0
LOOK_S: Final = 0.1
START_S_MAX: Final = 60.0
# A cluster whose faults are over is at rest within this time.
REST_S_MAX: Final = 120.0
# Within this time the scrub has read everything, and has told of what it found.
SCRUBBED_S: Final = 8.0
RUN_S_MAX: Final = 2_000.0
STUCK_TOLD_MAX: Final = 6
OFFSETS_PARTITIONS: Final = 3
SETTINGS: Final = {
    # What each node rewrites for itself cannot be compared batch by batch.
    "log.cleaner.enable": "false",
    "log.scrub.interval.ms": "2000",
    "replica.damaged.refill.enable": "true",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "metadata.log.max.record.bytes.between.snapshots": "4000",
}
# One of each by chance: shorter times bring about within a run what else takes minutes.
CHOICES: Final = {
    "broker.session.timeout.ms": ("9000", "4500"),
    "replica.lag.time.max.ms": ("30000", "4000"),
}
TOPICS: Final = {
    "main": TopicState(2, (("min.insync.replicas", "2"),)),
    "tiny": TopicState(
        1,
        (
            ("index.interval.bytes", "300"),
            ("min.insync.replicas", "2"),
            ("segment.bytes", "1500"),
        ),
    ),
}
GROUPS: Final = ("one", "two")
# In every third run the voters of the metadata log are records, and change all the time.
SEEDS_PER_CHANGED_QUORUM: Final = 3
# In every fourth run, the first among them, partitions move all the time.
SEEDS_PER_MOVES: Final = 4


class Stuck(AssertionError):
    """Faults have stopped, and the cluster does not come to rest."""


@dataclass
class Report:
    """What became of one seed."""

    seed: int
    failure: str | None = None
    messages_acknowledged: int = 0
    troubles: int = 0
    elections: int = 0
    voter_changes: int = 0
    moves: int = 0
    longest_pause_s: float = 0.0
    rest_s: float = 0.0
    virtual_s: float = 0.0
    # Of CPU: others may be at work beside it.
    cpu_s: float = 0.0
    digest: str = ""
    plan: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        return {k: v for k, v in asdict(self).items() if k not in ("plan", "story")}


def run_seed(
    seed: int,
    *,
    nodes: int = 3,
    tracing: bool = False,
    seconds: float = TROUBLED_S,
    kinds: Sequence[str] | None = None,
    leave_out: Collection[int] = (),
    has_moves: bool | None = None,
) -> Report:
    """Never raises what it is there to find: the report has it.

    `kinds` are the only kinds of trouble; those with the numbers in `leave_out` do not happen.
    Whether partitions move follows from the seed, unless it is said.
    """
    began_s = time.process_time()
    report = Report(seed)
    settings = SETTINGS | _chosen(Random(f"{seed} settings"))
    has_changes = seed % SEEDS_PER_CHANGED_QUORUM == 0
    with World(seed, nodes, settings, tracing=tracing, recorded_voters=has_changes) as world:
        chance = world.random("troubles")
        planned = plan(chance, sorted(world.nodes), seconds, kinds)
        troubles = [each for at, each in enumerate(planned) if at not in leave_out]
        if has_moves is None:
            has_moves = seed % SEEDS_PER_MOVES == 1
        run = Run(world, report, troubles, seconds, has_changes=has_changes, has_moves=has_moves)
        try:
            world.run(run.whole(), RUN_S_MAX)
        except (Broken, Stuck) as error:
            report.failure = f"{type(error).__name__}: {error}"
        except (Exception, asyncio.CancelledError) as error:
            report.failure = f"{type(error).__name__}: {error}"
            if tracing:
                import traceback

                report.story.extend(traceback.format_exception(error))
        report.virtual_s = world.now_s
        report.story = [*world.story, *report.story]
        report.digest = run.history.digest
        report.messages_acknowledged = run.history.messages_acknowledged
        report.elections = run.history.elections
    report.cpu_s = time.process_time() - began_s
    return report


def _chosen(random: Random) -> dict[str, str]:
    return {name: random.choice(values) for name, values in CHOICES.items()}


class Run:
    def __init__(
        self,
        world: World,
        report: Report,
        troubles: list[Trouble],
        seconds: float,
        *,
        has_changes: bool,
        has_moves: bool,
    ) -> None:
        self._world = world
        self._has_changes = has_changes
        self._has_moves = has_moves
        self._report = report
        self._seconds = seconds
        self.history = History(lambda: world.now_s)
        partitions = [
            TopicPartition(name, index)
            for name, state in TOPICS.items()
            for index in range(state.partitions)
        ]
        self._stage = Stage(world, self.history, partitions)
        calm = Calm(lambda: world.now_s)
        self._observer = Observer(world, self.history, calm)
        self._plan = troubles
        report.plan = [f"{trouble.at_s:6.1f} {trouble}" for trouble in troubles]
        look = self._observer.look_at_disk
        self._troubles = Troubles(world, world.random("chance"), calm, look)
        self._members: list[Member] = []

    async def whole(self) -> None:
        world, report = self._world, self._report
        await self._within(START_S_MAX, world.start_all(), lambda: what_is_stuck(world))
        await self._make_topics()
        looking = asyncio.ensure_future(self._keep_looking())
        load_s = world.now_s
        self._begin_load()
        await self._troubles.run(self._plan)
        await asyncio.sleep(max(0.0, load_s + self._seconds - world.now_s))
        report.troubles = self._troubles.carried_out
        world.trace("world", "the faults are over")
        healed_s = world.now_s
        await self._troubles.heal()
        self._stage.is_healed = True
        supervising = asyncio.ensure_future(self._troubles.supervise())
        try:
            await self._come_to_rest()
        finally:
            supervising.cancel()
        if looking.done():
            # Whoever sees nothing would find nothing.
            looking.result()
        looking.cancel()
        report.rest_s = world.now_s - healed_s
        report.longest_pause_s = self.history.longest_pause_s(load_s, healed_s)
        self._judge(await self._outcome())

    def _judge(self, outcome: Outcome) -> None:
        for node in self._world.nodes.values():
            self._observer.look_at_disk(node)
        check_all(self.history, outcome)
        if not any(KINDS[trouble.kind].is_of_disks for trouble in self._plan):
            for (node_id, _), reason in self._observer.given_up.items():
                raise Broken(f"node {node_id} has given up though its disk is well: {reason}")
        if self._world.unhandled:
            raise Broken(f"nobody has caught: {'; '.join(self._world.unhandled[:3])}")

    async def _keep_looking(self) -> None:
        while True:
            self._observer.look()
            await asyncio.sleep(LOOK_S)

    # ----------------------------------------------------------------------------------- the load

    async def _make_topics(self) -> None:
        async with self._stage.cluster("maker") as cluster:
            for name, state in TOPICS.items():
                if not await create_topic(self._stage, cluster, name, state):
                    raise Stuck(f"topic {name} cannot be made before there is any trouble")

    def _begin_load(self) -> None:
        stage = self._stage
        workers: dict[str, Callable[[], Awaitable[None]]] = {
            "idempotent-1": IdempotentProducer(stage, "idempotent-1").run,
            "idempotent-2": IdempotentProducer(stage, "idempotent-2").run,
            "plain": PlainProducer(stage, "plain", ACKS_ALL).run,
            "hasty": PlainProducer(stage, "hasty", 1).run,
            "reader-1": Reader(stage, "reader-1").run,
            "reader-2": Reader(stage, "reader-2").run,
            "watcher": EndWatcher(stage, "watcher").run,
            "administrator": Administrator(stage, "administrator").run,
            "elector": Elector(stage, "elector").run,
        }
        for group in GROUPS:
            for number in (1, 2):
                name = f"{group}-{number}"
                member = Member(stage, group, name)
                self._members.append(member)
                workers[name] = member.run
        if self._has_changes:
            workers["quorum-changer"] = QuorumChanger(stage, "quorum-changer", self._count).run
        if self._has_moves:
            groups = [TopicPartition(OFFSETS_TOPIC, each) for each in range(OFFSETS_PARTITIONS)]
            places = [*stage.partitions, *groups]
            workers["mover"] = Mover(stage, "mover", places, self._count_move).run
        for name, run in workers.items():
            stage.begin(name, run())  # type: ignore[arg-type]

    def _count(self) -> None:
        self._report.voter_changes += 1

    def _count_move(self) -> None:
        self._report.moves += 1

    # ----------------------------------------------------------------------------------- the rest

    async def _come_to_rest(self) -> None:
        """Under load groups settle; without it everything gets everywhere."""
        stage, world = self._stage, self._world
        await self._until(self._unsettled)
        stage.is_over = True
        await self._until(self._unended)
        for name, work in stage.spawned.items():
            try:
                work.result()
            except OttlaError as error:
                raise Broken(f"{name}: {type(error).__name__}: {error}") from error
        await self._until(lambda: what_is_stuck(world))
        await self._within(REST_S_MAX, self._write_everywhere(), lambda: what_is_stuck(world))
        await self._until(lambda: what_is_stuck(world))
        if any(trouble.kind == "bit-flip" for trouble in self._plan):
            await asyncio.sleep(SCRUBBED_S)
            await self._until(lambda: what_is_stuck(world))

    def _unsettled(self) -> list[str]:
        waiting = [
            f"member {member.name} belongs to no generation"
            for member in self._members
            if not member.is_settled
        ]
        return what_is_stuck(self._world, at_rest=False) + waiting

    def _unended(self) -> list[str]:
        waiting = [f"{name} does not end" for name in self._stage.under_way()]
        return waiting + what_is_stuck(self._world, at_rest=False) if waiting else []

    async def _write_everywhere(self) -> None:
        """A write to each partition there is must be acknowledged."""
        async with self._stage.cluster("last") as cluster:
            topics = await cluster.topics()
            names = [
                TopicPartition(topic.name, index)
                for topic in topics.values()
                if not topic.is_internal and topic.name not in TOPICS
                for index in topic.partitions
            ]
            async with Producer(cluster, delivery_timeout_s=REST_S_MAX) as producer:
                for name in names:
                    batch = encode_batch([Record(0, 0, None, b"last")])
                    await producer.send(Package(name, batch, 1))
                await producer.flush()

    async def _outcome(self) -> Outcome:
        offsets = await self._within(
            REST_S_MAX, self._committed(), lambda: ["the groups' offsets are not answered"]
        )
        world = self._world
        logs = [log for log in final_logs(world) if not log.name.topic.startswith("passing")]
        return Outcome(logs, metadata_facts(world), topics_found(world), offsets)

    async def _committed(self) -> dict[tuple[str, TopicPartition], int]:
        found: dict[tuple[str, TopicPartition], int] = {}
        async with self._stage.cluster("auditor") as cluster:
            for group in GROUPS:
                answer = await cluster.committed(group, self._stage.partitions)
                found |= {(group, partition): offset for partition, offset in answer.items()}
        return found

    # ---------------------------------------------------------------------------------- deadlines

    async def _until(self, reasons: Callable[[], list[str]]) -> None:
        deadline_s = self._world.now_s + REST_S_MAX
        while stuck := reasons():
            if self._world.now_s > deadline_s:
                raise Stuck(f"after {REST_S_MAX:g} s without faults: {_told(stuck)}")
            await asyncio.sleep(LOOK_S)

    async def _within(
        self, seconds: float, work: Awaitable[T], reasons: Callable[[], list[str]]
    ) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise Stuck(f"after {seconds:g} s: {_told(reasons())}") from None


def _told(reasons: list[str]) -> str:
    reasons = list(dict.fromkeys(reasons))
    more = len(reasons) - STUCK_TOLD_MAX
    return "; ".join(reasons[:STUCK_TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")
