"""The short way of a produce request and the general one cannot be told apart from outside."""

from __future__ import annotations

import asyncio
import errno
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ottla.broker.clock import SystemClock
from ottla.broker.control.metadata import MetadataCache
from ottla.broker.counters import Metrics
from ottla.broker.network.connection import Connection, Connections, Limits, Outbox
from ottla.broker.network.router import ApiKey, Router
from ottla.broker.network.waiting import Deadlines
from ottla.broker.services import Services
from ottla.broker.storage.flusher import Flusher
from ottla.broker.storage.opening import Opened, Opening
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.threads import RealThreads
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ErrorCode, OttlaError, UnknownTopicOrPartition
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.ports import File
from ottla.testing.disks import MemoryDisk
from ottla.types import LeaderEpoch, NodeId, TopicPartition
from ottla.wire.codec import decode, encode
from ottla.wire.compression import Compression
from ottla.wire.messages.metadata_records import (
    BrokerEndpoint,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from ottla.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.wire.scanning import QUICK_RECORDS_MAX
from ottla.wire.schema import Buffer
from records_kit import NOW_MS, batch
from unit.broker.partition_kit import lone_leader

TOPICS = {
    "synced": {},
    "cached": {"write.caching": "true"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "keyed": {"cleanup.policy": "compact"},
    "tight": {"max.message.bytes": "100", "message.timestamp.before.max.ms": "1000"},
    "n" * 130: {"write.caching": "true"},
}
NOT_READY = "not-ready"
PARTITION_COUNT = 2
FLEXIBLE_VERSION = 9
HEADER_BYTES = 61
ELSEWHERE = NodeId(2)
DEPOSED = "deposed"


# ------------------------------------------------------------------------------ the two brokers


class Wire(asyncio.Transport):
    """What the broker wrote to one client, and whether it hung up."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_cut = False
        self.has_sent = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.sent += data
        self.has_sent.set()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.sent += data
        self.has_sent.set()

    def pause_reading(self) -> None:
        pass

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.is_cut = True


class LaggingFlusher(Flusher):
    """Overloaded when a test says so: megabytes would take long."""

    is_overloaded = False


class OpeningHere(Opening):
    """Without a thread, so that both brokers get as far in a turn."""

    async def check_keys(self, batches: Sequence[tuple[str, Buffer]]) -> list[Opened]:
        return self._check_all(batches)


class SomePartitions:
    """The part of `Partitions` that a produce asks for."""

    def __init__(self, flusher: Flusher, disk: MemoryDisk, metrics: Metrics) -> None:
        data = DataDirectory(disk, "/data")
        disk.make_directory("/data")
        self.topics = {
            topic: {
                index: a_partition(topic, index, flusher, data, disk, metrics)
                for index in range(PARTITION_COUNT)
            }
            for topic in (*TOPICS, NOT_READY)
        }

    def in_topic(self, name: str) -> dict[int, Partition] | None:
        return self.topics.get(name)

    def absence_of(self, name: str, index: int) -> OttlaError:
        return UnknownTopicOrPartition(f"{name} has no partition {index}")

    def is_ready_for(self, topic: str) -> bool:
        return topic in TOPICS

    def __iter__(self) -> Any:
        return (partition for topic in self.topics.values() for partition in topic.values())


def a_partition(
    topic: str, index: int, flusher: Flusher, data: DataDirectory, disk: MemoryDisk, m: Metrics
) -> Partition:
    name = TopicPartition(topic, index)
    path = data.partition_path(name)
    log = Log.open(disk, path, LogConfig(segment_bytes=2000), now_ms=NOW_MS, clean=True)
    config = TopicConfig.resolve(BrokerConfig(), TOPICS.get(topic, {}))
    home = Home(data, name, bytes(16), is_durable=False)
    return lone_leader(name, bytes(16), log, 3, config, flusher, m.topic(topic), home)


def led_elsewhere(config: BrokerConfig) -> MetadataCache:
    """What the metadata says once other nodes have taken over."""
    metadata = MetadataCache(config)
    point = BrokerEndpoint("PLAINTEXT", "elsewhere", 9093, 0)
    metadata.apply(
        RegisterBrokerRecord(broker_id=ELSEWHERE, broker_epoch=9, end_points=[point], fenced=False)
    )
    for number, topic in enumerate(TOPICS):
        metadata.apply(TopicRecord(name=topic, topic_id=bytes([number + 1] * 16)))
        for index in range(PARTITION_COUNT):
            metadata.apply(
                PartitionRecord(
                    partition_id=index,
                    topic_id=bytes([number + 1] * 16),
                    replicas=[ELSEWHERE],
                    isr=[ELSEWHERE],
                    leader=ELSEWHERE,
                    leader_epoch=4,
                    partition_epoch=0,
                )
            )
    return metadata


class Node:
    """Connections, router and produce handler of a broker, on a disk in memory."""

    def __init__(
        self, *, is_short: bool, disk: MemoryDisk | None = None, opening: Opening | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.disk = disk or MemoryDisk()
        self.metrics = Metrics()
        outbox = Outbox()
        self.flusher = LaggingFlusher(
            loop, RealThreads(), SystemClock(), self.disk, "test", lambda _: None, outbox
        )
        self.partitions = SomePartitions(self.flusher, self.disk, self.metrics)
        self.deadlines = Deadlines(loop)
        self.opening = opening or OpeningHere(RealThreads(), lambda: None)
        config = BrokerConfig.parse({"auto.create.topics.enable": "false"})
        services = SimpleNamespace(
            clock=SimpleNamespace(wall_ms=lambda: NOW_MS),
            config=config,
            deadlines=self.deadlines,
            loop=loop,
            is_serving=True,
            metadata=led_elsewhere(config),
            metrics=self.metrics,
            opening=self.opening,
            partitions=self.partitions,
        )
        router = Router(cast(Services, services))
        router.preload(ApiKey.PRODUCE)
        assert router.one_batch_produces is not None
        self.taken: list[bool] = []
        if is_short:
            begin = router.one_batch_produces.begin

            def watched(connection: Connection, frame: bytearray, started_s: float) -> bool:
                self.taken.append(begin(connection, frame, started_s))
                return self.taken[-1]

            router.one_batch_produces.begin = watched  # type: ignore[method-assign]
        else:
            router.one_batch_produces = None
        self.listener = Connections(loop, router, Limits(config), self.metrics, outbox)
        self.clients: list[tuple[Connection, Wire]] = []
        for _ in range(2):
            connection, wire = self.listener.connection("PLAINTEXT"), Wire()
            connection.connection_made(wire)
            self.clients.append((connection, wire))

    def receive(self, client: int, frames: bytes) -> None:
        connection, wire = self.clients[client]
        if not wire.is_cut:
            connection.get_buffer(-1)[: len(frames)] = frames
            connection.buffer_updated(len(frames))

    def depose(self) -> None:
        """Another node leads everything from now on."""
        for partition in self.partitions:
            partition.follow(LeaderEpoch(4), ELSEWHERE)

    async def settle(self) -> None:
        """Until every reply is there."""
        for _ in range(4):
            await asyncio.sleep(0)
        await self.flusher.drain()
        for _ in range(4):
            await asyncio.sleep(0)

    def seen(self) -> object:
        """All that a client, an operator or a later start could see."""
        api = self.metrics.api(ApiKey.PRODUCE, "Produce")
        return {
            "replies": [(bytes(wire.sent), wire.is_cut) for _, wire in self.clients],
            "open requests": [len(connection.exchanges) for connection, _ in self.clients],
            "requests": (api.count, api.errors, sum(api.counts)),
            "topics": [
                [getattr(topic, name) for name in topic.__slots__]
                for topic in map(self.metrics.topic, (*TOPICS, NOT_READY))
            ],
            "bytes": (self.metrics.bytes_received, self.listener.bytes_in_flight),
            "dropped": self.metrics.connections_dropped,
            "ends": [(p.end_offset, p.high_watermark, p.is_fenced) for p in self.partitions],
            "files": {path: self.disk.read_file(path) for path in self.disk.paths()},
        }

    async def stop(self) -> None:
        self.deadlines.close()
        self.opening.close()
        self.disk.heal()
        await self.flusher.stop()


# ------------------------------------------------------------------------------------- requests


class Framed(NamedTuple):
    request: ProduceRequest
    version: int
    client_id: bytes | None = b"rdkafka"
    head_tags: bytes = b"\0"
    tail: bytes = b""
    mangle: Callable[[bytearray], bytearray] = lambda frame: frame

    def of(self, **changes: Any) -> Framed:
        """The same with another batch, topic, partition or condition."""
        request = self.request
        topic = request.topic_data[0] if request.topic_data else TopicProduceData("cached", [])
        part = topic.partition_data[0] if topic.partition_data else PartitionProduceData(0, None)
        values = {
            "data": part.records,
            "topic": topic.name,
            "index": part.index,
            "acks": request.acks,
            "transactional_id": request.transactional_id,
            **changes,
        }
        return self._replace(request=a_produce(**values))

    def times(self, count: int) -> Framed:
        """For so many topics, and partitions of each."""
        request = self.request
        topics = [
            TopicProduceData(topic.name, topic.partition_data * count)
            for topic in request.topic_data * count
        ]
        request = ProduceRequest(request.transactional_id, request.acks, 20_000, topics)
        return self._replace(request=request)

    def frame(self, correlation_id: int) -> bytes:
        size = -1 if self.client_id is None else len(self.client_id)
        head = struct.pack(">hhih", ApiKey.PRODUCE, self.version, correlation_id, size)
        tags = self.head_tags if self.version >= FLEXIBLE_VERSION else b""
        body = encode(self.request, self.version) + self.tail
        frame = self.mangle(bytearray(head + (self.client_id or b"") + tags + body))
        return struct.pack(">i", len(frame)) + frame


def a_produce(
    data: bytes | bytearray | None,
    topic: str = "cached",
    *,
    index: int = 0,
    acks: int = 1,
    transactional_id: str | None = None,
    timeout_ms: int = 20_000,
) -> ProduceRequest:
    part = TopicProduceData(topic, [PartitionProduceData(index, data)])
    return ProduceRequest(transactional_id, acks, timeout_ms, [part])


def with_byte(at: int, value: int) -> Callable[[bytearray], bytearray]:
    def mangle(frame: bytearray) -> bytearray:
        frame[at % len(frame)] = value
        return frame

    return mangle


def cut_at(at: int) -> Callable[[bytearray], bytearray]:
    return lambda frame: frame[: max(1, at % len(frame))]


def broken(data: bytearray, at: int, value: int) -> bytearray:
    """In the header, where a changed byte may mean anything."""
    data[at] = value
    return data


batches = st.one_of(
    st.just(batch(b"a")),
    st.just(batch(b"a", b"b", key=None)),
    st.just(batch(b"x" * 20_000)),
    st.just(batch(*[b""] * (QUICK_RECORDS_MAX + 1))),
    st.just(batch(*[b""] * (QUICK_RECORDS_MAX + 1), key=None)),
    st.builds(batch, st.binary(max_size=20), compression=st.sampled_from(Compression)),
    st.builds(batch, st.just(b"old"), timestamp=st.sampled_from([-1, 5, NOW_MS - 5000, NOW_MS])),
    st.builds(
        batch,
        st.just(b"once"),
        producer_id=st.just(7),
        producer_epoch=st.integers(0, 1),
        base_sequence=st.integers(0, 2),
    ),
    st.builds(batch, st.just(b"control"), is_control=st.booleans(), is_transactional=st.booleans()),
    st.builds(
        lambda at, value: broken(batch(b"a"), at, value),
        st.integers(0, HEADER_BYTES - 1),
        st.integers(0, 255),
    ),
    st.builds(lambda size: batch(b"a")[:size], st.integers(0, HEADER_BYTES + 4)),
    st.just(batch(b"a") + batch(b"b")),
    st.none(),
)
requests = st.builds(
    a_produce,
    batches,
    st.sampled_from([*TOPICS, *TOPICS, NOT_READY, "unknown", ""]),
    index=st.sampled_from([0, 0, 0, 1, PARTITION_COUNT, -1]),
    acks=st.sampled_from([1, 1, -1, -1, 0, 2]),
    transactional_id=st.sampled_from([None, None, None, None, "", "t"]),
)
mangles = st.one_of(
    st.builds(with_byte, st.integers(0, 60), st.integers(0, 255)),
    st.builds(with_byte, st.integers(-4, -1), st.integers(0, 3)),
    st.builds(cut_at, st.integers(0, 300)),
)
# In one thing different from the request before it, as a request rarely is.
changes = st.one_of(
    st.builds(lambda data: lambda f: f.of(data=data), batches),
    st.builds(lambda data: lambda f: f.of(data=data), batches),
    st.builds(lambda topic: lambda f: f.of(topic=topic), st.sampled_from([*TOPICS, NOT_READY])),
    st.builds(lambda index: lambda f: f.of(index=index), st.integers(0, PARTITION_COUNT)),
    st.builds(lambda acks: lambda f: f.of(acks=acks), st.integers(-2, 2)),
    st.builds(lambda name: lambda f: f.of(transactional_id=name), st.sampled_from([None, "", "t"])),
    st.builds(lambda count: lambda f: f.times(count), st.integers(0, 2)),
    st.builds(lambda version: lambda f: f._replace(version=version), st.integers(0, 12)),
    st.builds(lambda mangle: lambda f: f._replace(mangle=mangle), mangles),
    st.sampled_from(
        [
            lambda f: f._replace(client_id=None),
            lambda f: f._replace(client_id=b""),
            lambda f: f._replace(client_id=b"\xff"),
            lambda f: f._replace(head_tags=b"\1\0\0"),
            lambda f: f._replace(head_tags=b"\1\5\2ab"),
            lambda f: f._replace(tail=b"\0"),
            lambda f: f._replace(tail=b"tail"),
        ]
    ),
)


class Step(NamedTuple):
    """What one client sends in one piece, and in what state the broker's disk is."""

    frames: Sequence[Framed]
    client: int = 0
    is_overloaded: bool = False
    fault: str = ""


@st.composite
def stories(draw: st.DrawFn) -> list[Step]:
    """Clients that mostly repeat themselves, a disk that mostly works."""
    usual = [Framed(draw(requests), draw(st.integers(6, 12))) for _ in range(2)]
    story = []
    for _ in range(draw(st.integers(1, 5))):
        frames = []
        for _ in range(draw(st.integers(1, 3))):
            client = draw(st.integers(0, 1))
            frame = usual[client]
            if draw(st.booleans()):
                frame = draw(changes)(frame)
            if draw(st.booleans()):
                usual[client] = frame
            frames.append(frame)
        fault = draw(st.sampled_from(["", "", "", "", "write", "sync", DEPOSED]))
        story.append(Step(frames, draw(st.integers(0, 1)), draw(st.booleans()), fault))
    return story


def assert_in_order(replies: bytearray) -> None:
    position, last_id = 0, -1
    while position < len(replies):
        size, correlation_id = struct.unpack_from(">ii", replies, position)
        assert correlation_id > last_id
        position, last_id = position + 4 + size, correlation_id
    assert position == len(replies)


async def live_through(story: Sequence[Step]) -> list[bool]:
    """Tells both brokers the same story; returns which requests went the short way."""
    short, general = nodes = Node(is_short=True), Node(is_short=False)
    correlation_id = 0
    try:
        for step in story:
            ids = range(correlation_id, correlation_id + len(step.frames))
            correlation_id = ids.stop
            pieces = b"".join(f.frame(i) for f, i in zip(step.frames, ids, strict=True))
            for node in nodes:
                node.flusher.is_overloaded = step.is_overloaded
                if step.fault and step.fault != DEPOSED:
                    node.disk.fail(step.fault, errno.EIO)
                if len(pieces) < len(node.listener.read_buffer):
                    node.receive(step.client, pieces)
                if step.fault == DEPOSED:
                    node.depose()
                await node.settle()
                node.disk.heal()
            assert short.seen() == general.seen()
        for _, wire in short.clients:
            assert_in_order(wire.sent)
    finally:
        for node in nodes:
            await node.stop()
    return short.taken


@settings(
    max_examples=200,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(stories())
@example([Step([Framed(a_produce(batch(b"a"), "synced", acks=-1), 12)], fault="sync")])
@example([Step([Framed(a_produce(batch(b"a"), "cached", acks=1), 12)], fault="write")])
@example([Step([Framed(a_produce(batch(b"a"), "synced", acks=-1), 12)], fault=DEPOSED)] * 2)
def test_both_ways_give_the_same_bytes_counts_and_files(story: list[Step]) -> None:
    asyncio.run(live_through(story))


@pytest.mark.parametrize("is_short", [True, False])
def test_who_waits_while_another_node_takes_over_is_told_where_it_is(is_short: bool) -> None:
    async def story() -> ProduceResponse:
        node = Node(is_short=is_short)
        try:
            node.receive(0, Framed(a_produce(batch(b"a"), "synced", acks=-1), 12).frame(1))
            node.depose()
            await node.settle()
            return decode(ProduceResponse, bytes(node.clients[0][1].sent), 12, 9)
        finally:
            await node.stop()

    response = asyncio.run(story())
    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (ELSEWHERE, 4)
    (where,) = response.node_endpoints
    assert (where.node_id, where.host, where.port) == (ELSEWHERE, "elsewhere", 9093)


def ways_of(*frames: Framed) -> list[bool]:
    return asyncio.run(live_through([Step([frame]) for frame in frames]))


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("version", range(7, 13))
def test_one_batch_goes_the_short_way(version: int, topic: str, acks: int) -> None:
    small, large = batch(b"a"), batch(b"x" * 20_000)
    frames = [
        Framed(a_produce(data, topic, index=index, acks=acks), version)
        for data, index in ((small, 0), (large, 0), (small, 1), (small, 0))
    ]
    assert ways_of(*frames) == [True] * 4


def test_what_has_to_be_explained_goes_the_general_way() -> None:
    usual = a_produce(batch(b"a"))
    two = ProduceRequest(None, 1, 20_000, [*usual.topic_data, *usual.topic_data])
    at_its_end = [with_byte(-3, 1), with_byte(-2, 1), with_byte(-1, 1)]
    explained = [
        Framed(usual, 6),
        Framed(two, 12),
        Framed(ProduceRequest(None, 1, 20_000, usual.topic_data * 2), 8),
        Framed(a_produce(None), 12),
        Framed(a_produce(batch(b"a"), acks=0), 12),
        Framed(a_produce(batch(b"a"), acks=2), 12),
        Framed(a_produce(batch(b"a"), transactional_id="t"), 12),
        Framed(a_produce(batch(b"a"), transactional_id=""), 12),
        Framed(a_produce(batch(b"a"), transactional_id=""), 8),
        Framed(a_produce(batch(b"a"), "unknown"), 12),
        Framed(a_produce(batch(b"a"), NOT_READY), 12),
        Framed(a_produce(batch(b"a"), index=PARTITION_COUNT), 12),
        Framed(usual, 12, head_tags=b"\1\0\0"),
        Framed(usual, 12, tail=b"\0"),
        Framed(usual, 8, tail=b"\0"),
    ]
    assert ways_of(*explained) == [False] * len(explained)
    keyed = [
        Framed(a_produce(batch(*[b""] * count, compression=codec), "keyed"), 12)
        for count, codec in ((1, 0), (QUICK_RECORDS_MAX, 0), (QUICK_RECORDS_MAX + 1, 0), (1, 4))
    ]
    assert ways_of(*keyed) == [True, True, False, False]
    for mangle in at_its_end:
        assert ways_of(Framed(usual, 12), Framed(usual, 12, mangle=mangle)) == [True, False]


class StallingDisk(MemoryDisk):
    """Its syncs wait for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def sync_many(self, files: Sequence[File], directories: Sequence[str] = ()) -> bool:
        assert self.go.wait(20)
        return super().sync_many(files, directories)


async def on_a_stalled_disk(story: Callable[[Node, StallingDisk], Awaitable[None]]) -> object:
    """Lives through it both ways; what both have seen at last is the same."""
    seen = []
    for is_short in (True, False):
        disk = StallingDisk()
        node = Node(is_short=is_short, disk=disk)
        try:
            await asyncio.wait_for(story(node, disk), 20)
            disk.go.set()
            await node.settle()
            seen.append(node.seen())
            assert node.taken == [True] * len(node.taken)
        finally:
            disk.go.set()
            await node.stop()
    assert seen[0] == seen[1]
    return seen[0]


def waiting(timeout_ms: int, acks: int = -1) -> bytes:
    return Framed(a_produce(batch(b"a"), "synced", acks=acks, timeout_ms=timeout_ms), 12).frame(5)


def test_a_disk_that_is_too_slow_is_answered_once_and_in_time() -> None:
    async def story(node: Node, disk: StallingDisk) -> None:
        node.receive(0, waiting(timeout_ms=1))
        await node.clients[0][1].has_sent.wait()
        assert not node.clients[0][0].exchanges

    seen: Any = asyncio.run(on_a_stalled_disk(story))
    ((reply, is_cut), _) = seen["replies"]
    assert b"not on disk in time" in reply
    assert not is_cut


def test_who_does_not_wait_for_the_disk_has_to_once_it_is_overloaded() -> None:
    async def story(node: Node, disk: StallingDisk) -> None:
        node.flusher.is_overloaded = True
        node.receive(0, waiting(timeout_ms=20_000, acks=1))
        for _ in range(4):
            await asyncio.sleep(0)
        assert not node.clients[0][1].sent
        node.flusher.is_overloaded = False
        node.receive(1, waiting(timeout_ms=20_000, acks=1))
        await node.clients[1][1].has_sent.wait()

    seen: Any = asyncio.run(on_a_stalled_disk(story))
    assert all(reply for reply, _ in seen["replies"])


def test_a_client_that_leaves_while_its_batch_is_synced_is_forgotten() -> None:
    async def story(node: Node, disk: StallingDisk) -> None:
        node.receive(0, waiting(timeout_ms=20_000))
        await asyncio.sleep(0)
        connection, _ = node.clients[0]
        assert len(connection.exchanges) == 1
        connection.connection_lost(None)
        assert node.listener.bytes_in_flight == 0

    seen: Any = asyncio.run(on_a_stalled_disk(story))
    assert seen["replies"][0] == (b"", False)


def test_a_broker_that_stops_answers_first() -> None:
    async def story(node: Node, disk: StallingDisk) -> None:
        node.receive(0, waiting(timeout_ms=20_000))
        await asyncio.sleep(0)
        node.listener.is_stopping = True
        node.clients[0][0].finish()
        assert not node.clients[0][1].is_cut

    seen: Any = asyncio.run(on_a_stalled_disk(story))
    reply, is_cut = seen["replies"][0]
    assert reply
    assert is_cut


def test_what_nobody_foresaw_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(Partition, "append", fail)
    usual = Framed(a_produce(batch(b"a")), 12)
    assert ways_of(usual) == []
