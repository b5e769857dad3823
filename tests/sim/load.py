"""Clients that keep a broker busy and remember what it told them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from random import Random
from typing import Any

from ottla.errors import ErrorCode
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.records import Record, encode_batch
from sim.caller import Caller, Gone
from sim.checker import LOADING, TOPIC, fetch, new_producer_id
from sim.history import (
    Broken,
    Commits,
    History,
    Lane,
    NameHistory,
    PartitionHistory,
    Sent,
    TopicState,
    batches_in,
)
from sim.machine import Machine

IN_FLIGHT = 5
BACKOFF_S = 0.003
RETRIES_MAX = 20
SET = 0
# Young enough for every retention that is set here.
NOW_MS = int(time.time() * 1000)
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
NEVER_RETRIED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID)
KEPT_TOPICS = {
    "main": TopicState(3, (("write.caching", "false"),)),
    "tiny": TopicState(
        2,
        (
            ("index.interval.bytes", "300"),
            ("segment.bytes", "1500"),
            ("write.caching", "false"),
        ),
    ),
    "cached": TopicState(1, (("write.caching", "true"),)),
}
PASSING_TOPICS = ("here", "there")


class Load:
    """Everything that clients do between a start and a cut. Each does its share, and ends."""

    def __init__(
        self, machine: Machine, history: History, random: Random, share: int, idempotent: int
    ) -> None:
        self._idempotent = idempotent
        self._machine = machine
        self._history = history
        self._random = random
        self._share = share
        self._callers: list[Caller] = []

    async def caller(self) -> Caller:
        caller = await Caller.connect(self._machine.disk, self._machine.address)
        self._callers.append(caller)
        return caller

    def close(self) -> None:
        for caller in self._callers:
            caller.close()

    async def run(self) -> None:
        """Returns when everybody has done their share, or has lost the connection."""
        self._survivors = [
            lane
            for partition in self._partitions()
            for lane in [lane for lane in partition.lanes if lane.is_idempotent and lane.sent][-2:]
        ]
        for name in self._history.names.values():
            name.under_way = 0
        if not self._partitions(kept=True):
            return
        work: list[Coroutine[Any, Any, None]] = [
            self._administer(),
            self._commit_offsets(),
            self._take_producer_ids(),
            self._consume(),
            self._delete_records(),
            self._produce_idempotent(resume=True),
            *(self._produce_idempotent(resume=False) for _ in range(self._idempotent)),
        ]
        work += [self._produce_plain(acks) for acks in (-1, -1, 1, 0)]
        tasks = [asyncio.ensure_future(self._until_gone(each)) for each in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for each in work:
                # Where the power went first, it never began.
                each.close()

    async def _until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Gone:
            return

    # ------------------------------------------------------------------------------- producing

    def _partitions(self, *, kept: bool = False) -> list[PartitionHistory]:
        return [
            partition
            for name in self._history.names.values()
            if name.is_certain and (not kept or name.name in KEPT_TOPICS)
            for partition in name.partitions
        ]

    def _is_there(self, partition: PartitionHistory) -> bool:
        """Whether its topic is, and is not about to be another one."""
        name = self._history.name(partition.topic)
        return name.is_certain and partition in name.partitions

    def _new_lane(self, partition: PartitionHistory, producer_id: int = -1) -> Lane:
        kind = f"producer {producer_id}" if producer_id >= 0 else "plain producer"
        name = f"{kind} to {partition.name} in round {self._history.cuts}"
        epoch = -1 if producer_id < 0 else 0
        lane = Lane(f"{name}/{len(partition.lanes)}", partition, producer_id, epoch)
        partition.lanes.append(lane)
        return lane

    def _new_batch(self, lane: Lane, acks: int) -> Sent:
        random, number = self._random, len(lane.sent)
        count = random.choice((1, 1, 2, 5))
        filling = b"." * random.choice((0, 20, 300, 900))
        records = [
            Record(at, NOW_MS, b"k", b"%s#%d.%d" % (lane.name.encode(), number, at) + filling)
            for at in range(count)
        ]
        fields = {}
        if lane.is_idempotent:
            fields = {
                "producer_id": lane.producer_id,
                "producer_epoch": lane.producer_epoch,
                "base_sequence": lane.next_sequence,
            }
        data = bytes(encode_batch(records, **fields))
        sent = Sent(lane, number, data, count, acks, fields.get("base_sequence", -1))
        lane.next_sequence += count
        lane.sent.append(sent)
        lane.partition.given[sent.body] = sent
        return sent

    def _send(self, caller: Caller, sent: Sent) -> asyncio.Future[Any]:
        partition = sent.lane.partition
        parts = [PartitionProduceData(partition.index, bytearray(sent.data))]
        request = ProduceRequest(
            acks=sent.acks,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(partition.topic, parts)],
        )
        reply = caller.send(request, 9, silent=sent.acks == 0)
        if sent.acks:
            name = self._history.name(partition.topic)
            name.under_way += 1
            reply.add_done_callback(lambda _: name.arrived())
        return reply

    async def _answer(self, sent: Sent, reply: asyncio.Future[Any]) -> int:
        """The error; without one the batch is acknowledged."""
        answer = (await reply).responses[0].partition_responses[0]
        self._history.answers += 1
        if answer.error_code == 0 and self._is_there(sent.lane.partition):
            sent.lane.partition.acknowledge(sent, answer.base_offset)
            self._history.batches_acked += 1
        return int(answer.error_code)

    async def _produce_plain(self, acks: int) -> None:
        """Never repeats a batch, so none may be there twice."""
        caller = await self.caller()
        lanes: dict[PartitionHistory, Lane] = {}
        under_way: deque[tuple[Sent, asyncio.Future[Any]]] = deque()
        for _ in range(self._share):
            partition = self._random.choice(self._partitions(kept=acks == 0))
            if partition not in lanes:
                lanes[partition] = self._new_lane(partition)
            sent = self._new_batch(lanes[partition], acks)
            reply = self._send(caller, sent)
            if acks == 0:
                await asyncio.sleep(0)
                continue
            under_way.append((sent, reply))
            while len(under_way) >= IN_FLIGHT:
                await self._answer(*under_way.popleft())
        while under_way:
            await self._answer(*under_way.popleft())

    async def _produce_idempotent(self, *, resume: bool) -> None:
        """New producers all the time, and before them those that have lived through the cut."""
        caller = await self.caller()
        if resume:
            await self._resume(caller)
        left = self._share
        while left > 0:
            producer_id = await new_producer_id(caller, self._history)
            if producer_id is None:
                await asyncio.sleep(BACKOFF_S)
                left -= 1
                continue
            choices = [p for p in self._partitions() if not p.is_cached]
            chosen = self._random.sample(choices, min(2, len(choices)))
            lanes = [self._new_lane(partition, producer_id) for partition in chosen]
            count = self._random.choice((3, 6, 12))
            left -= count
            for lane in lanes:
                await self._run_lane(caller, lane, count)

    async def _resume(self, caller: Caller) -> None:
        """Before the cut some batches were sent and not answered, others answered."""
        for lane in self._survivors:
            await self._repeat_answered(caller, lane)
            if lane.unacked():
                await self._run_lane(caller, lane, 2)

    async def _repeat_answered(self, caller: Caller, lane: Lane) -> None:
        """Such a batch is known as a repetition, and is not stored once more."""
        repeatable = [sent for sent in lane.repeatable() if sent.is_acked]
        if not repeatable or not self._is_there(lane.partition):
            return
        sent = self._random.choice(repeatable)
        error = await self._answer(sent, self._send(caller, sent))
        if (error == OUT_OF_ORDER or error in NEVER_RETRIED) and self._is_there(lane.partition):
            raise Broken(
                f"{sent} was acknowledged at {sent.offset}, its repetition gets error {error}"
            )

    async def _run_lane(self, caller: Caller, lane: Lane, count: int) -> None:
        """As librdkafka: five under way; after an error all wait, then are sent again in order."""
        target = len(lane.sent) + count
        retries = 0
        is_steady = self._random.random() < 0.5
        while self._is_there(lane.partition):
            to_send = deque(lane.unacked())
            under_way: deque[tuple[Sent, asyncio.Future[Any]]] = deque()
            has_failed = False
            while to_send or under_way or (len(lane.sent) < target and not has_failed):
                while len(under_way) < IN_FLIGHT and not has_failed:
                    if not self._is_there(lane.partition):
                        break
                    if to_send:
                        sent = to_send.popleft()
                    elif len(lane.sent) < target:
                        sent = self._new_batch(lane, -1)
                    else:
                        break
                    under_way.append((sent, self._send(caller, sent)))
                    if is_steady:
                        # Each in another turn of the loop: the broker writes them one by one.
                        await asyncio.sleep(0)
                        await asyncio.sleep(0)
                if not under_way:
                    return
                sent, reply = under_way.popleft()
                error = await self._answer(sent, reply)
                if error:
                    has_failed = not self._is_believed(sent, error) or has_failed
            if not lane.unacked() and len(lane.sent) >= target:
                return
            retries += 1
            if retries > RETRIES_MAX:
                return
            await asyncio.sleep(BACKOFF_S)

    def _is_believed(self, sent: Sent, error: int) -> bool:
        """Whether the client takes it for stored all the same."""
        lane = sent.lane
        if not self._is_there(lane.partition):
            return False
        if error in NEVER_RETRIED:
            raise Broken(f"{lane.partition.name}: {sent} gets error {error}")
        if error != OUT_OF_ORDER:
            return False
        later = [each for each in lane.sent if each.is_acked and each.sequence > sent.sequence]
        if later:
            lane.partition.believe(sent)
            return True
        if sent is lane.unacked()[0]:
            raise Broken(f"{lane.partition.name}: {sent} is next, and is refused as out of order")
        return False

    # ------------------------------------------------------------------------------- the others

    async def _consume(self) -> None:
        caller = await self.caller()
        places: dict[PartitionHistory, int] = {}
        for _ in range(self._share):
            partitions = self._partitions()
            partition = self._random.choice(partitions)
            at = max(places.get(partition, 0), partition.start_asked)
            answer = await fetch(caller, partition, at, wait_ms=2)
            if answer.error_code == 0 and self._is_there(partition):
                found = batches_in(answer.records or b"")
                partition.show(found, answer.high_watermark)
                if found:
                    places[partition] = found[-1].header.next_offset

    async def _take_producer_ids(self) -> None:
        caller = await self.caller()
        for _ in range(3):
            await new_producer_id(caller, self._history)

    async def _delete_records(self) -> None:
        caller = await self.caller()
        for _ in range(self._share // 8):
            partition = self._random.choice(self._partitions(kept=True))
            if partition.is_cached or partition.shown_end < 4 or self._random.random() < 0.5:
                await fetch(caller, partition, partition.start_asked, wait_ms=1)
                continue
            offset = self._random.randint(partition.start_asked, partition.shown_end)
            partition.start_asked = max(partition.start_asked, offset)
            asked = DeleteRecordsTopic(
                partition.topic, [DeleteRecordsPartition(partition.index, offset)]
            )
            reply = await caller.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=10_000), 2)
            answer = reply.topics[0].partitions[0]
            if answer.error_code == 0:
                self._history.answers += 1
                partition.start_answered = max(partition.start_answered, answer.low_watermark)

    async def _commit_offsets(self) -> None:
        caller = await self.caller()
        groups = ("one", "two", "three")
        for group in groups:
            await caller.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
        under_way: deque[tuple[list[Commits], int, asyncio.Future[Any]]] = deque()
        for _ in range(self._share):
            group = self._random.choice(groups)
            partitions = [p for p in self._partitions(kept=True) if p.topic == "main"]
            if not partitions:
                return
            some = self._random.sample(partitions, min(2, len(partitions)))
            commits = [
                self._history.commits.setdefault((group, p.topic, p.index), Commits()) for p in some
            ]
            value = 1 + max(v for c in commits for v in (c.answered, *c.unanswered))
            for each in commits:
                each.unanswered.append(value)
            parts = [OffsetCommitRequestPartition(p.index, value) for p in some]
            request = OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic("main", parts)])
            under_way.append((commits, value, caller.send(request, 8)))
            while len(under_way) >= IN_FLIGHT:
                await self._committed(*under_way.popleft())
        while under_way:
            await self._committed(*under_way.popleft())

    async def _committed(
        self, commits: list[Commits], value: int, reply: asyncio.Future[Any]
    ) -> None:
        answers = (await reply).topics[0].partitions
        for each, answer in zip(commits, answers, strict=True):
            if answer.error_code == 0:
                self._history.answers += 1
                # What was sent before it is overwritten, what was sent after it may follow.
                place = each.unanswered.index(value)
                each.answered, each.unanswered = value, each.unanswered[place + 1 :]
            elif answer.error_code in LOADING:
                await asyncio.sleep(BACKOFF_S)

    # --------------------------------------------------------------------------- administering

    async def make_kept_topics(self) -> None:
        caller = await self.caller()
        for name, state in KEPT_TOPICS.items():
            history = self._history.name(name)
            while history.possible == [None]:
                if not await self._create(caller, history, state):
                    await asyncio.sleep(BACKOFF_S)

    async def _administer(self) -> None:
        caller = await self.caller()
        for _ in range(max(2, self._share // 2)):
            history = self._history.name(self._random.choice(PASSING_TOPICS))
            if not history.is_certain:
                kept = self._history.name("main")
                if kept.is_certain:
                    await self._alter(caller, kept)
                continue
            state = history.possible[0]
            if state is None and history.under_way:
                await asyncio.sleep(BACKOFF_S)
            elif state is None:
                new = TopicState(self._random.choice((1, 2)), (("write.caching", "false"),))
                if self._random.random() < 0.5:
                    new = new.with_configs(retention_ms=str(self._random.randint(10**9, 10**10)))
                await self._create(caller, history, new)
            elif self._random.random() < 0.3:
                await self._delete(caller, history)
            elif self._random.random() < 0.3:
                await self._add_partition(caller, history)
            else:
                await self._alter(caller, history)

    async def _change(
        self, history: NameHistory, state: TopicState | None, reply: asyncio.Future[Any]
    ) -> Any:
        """Until the answer is there, both may be true; after an error that may last."""
        history.possible.append(state)
        answer: Any = None
        answers = await reply
        for name in ("topics", "responses", "results"):
            answer = getattr(answers, name, [None])[0] or answer
        if answer.error_code == 0:
            self._history.answers += 1
            if state is not None and state.id is None:
                state = TopicState(state.partitions, state.configs, answer.topic_id)
            history.settle(state)
        return answer

    async def _create(self, caller: Caller, history: NameHistory, state: TopicState) -> bool:
        configs = [CreatableTopicConfig(name, value) for name, value in state.configs]
        topic = CreatableTopic(history.name, state.partitions, 1, [], configs)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        answer = await self._change(history, state, caller.send(request, 7))
        return bool(answer.error_code == 0)

    async def _delete(self, caller: Caller, history: NameHistory) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(history.name)], timeout_ms=10_000)
        await self._change(history, None, caller.send(request, 6))

    async def _add_partition(self, caller: Caller, history: NameHistory) -> None:
        state = history.possible[0]
        assert state is not None
        count = state.partitions + 1
        if count > 4:
            return
        topic = CreatePartitionsTopic(history.name, count, None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)
        new = TopicState(count, state.configs, state.id)
        await self._change(history, new, caller.send(request, 3))

    async def _alter(self, caller: Caller, history: NameHistory) -> None:
        state = history.possible[0]
        if state is None:
            return
        value = str(self._random.randint(10**9, 10**10))
        config = AlterableConfig("retention.ms", SET, value)
        resource = AlterConfigsResource(TOPIC, history.name, [config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        await self._change(history, state.with_configs(retention_ms=value), caller.send(request, 1))
