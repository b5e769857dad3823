"""A node that has its metadata and nothing else, on a disk in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

from ottla.broker.control.metadata import MetadataCache
from ottla.broker.control.runtime import Runtime
from ottla.broker.control.snapshots import (
    MetadataSnapshots,
    open_after,
)
from ottla.broker.counters import TopicMetrics
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.retention import Shortener
from ottla.broker.threads import RealThreads
from ottla.cluster.brokers import FIRST, Registration
from ottla.cluster.controller import Controller
from ottla.cluster.image import MetadataImage
from ottla.cluster.snapshot import copy_of
from ottla.config import BrokerConfig, TopicConfig
from ottla.log.checkpoints import START_OFFSETS, format_lines, read_offsets
from ottla.log.directory import DataDirectory
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk, PowerLoss
from ottla.types import METADATA_TOPIC, METADATA_TOPIC_ID, Now, TopicPartition
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.metadata_records import BrokerEndpoint
from unit.broker.partition_kit import lone_leader

NOW_MS = 1_790_000_000_000
NAME = TopicPartition(METADATA_TOPIC, 0)
DIRECTORY = f"/data/{NAME}"
STARTS = f"/data/{START_OFFSETS}"


class HandClock:
    def __init__(self) -> None:
        self.ms = 0

    def now(self) -> Now:
        return Now(NOW_MS + self.ms, self.ms)

    def wall_ms(self) -> int:
        return NOW_MS + self.ms

    def steady_s(self) -> float:
        return self.ms / 1000


class SeededRandom:
    def __init__(self, seed: int) -> None:
        self._source = Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)


class FlusherInTurn:
    """Writes and syncs at the end of the loop turn, so that every disk step has its number."""

    is_full = is_holding = False

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def queue(self, partition: Partition) -> None:
        asyncio.get_running_loop().call_soon(self._flush, partition)

    def _flush(self, partition: Partition) -> None:
        partition.write_queued()
        ticket = partition.begin_sync()
        if ticket is not None:
            self._disk.sync_many(ticket.files, ticket.directories)
            partition.make_directory_durable(False)
            partition.finish_sync(ticket)


def copied(image: MetadataImage) -> MetadataImage:
    copy = MetadataImage()
    for record in copy_of(image).records():
        copy.apply(record)
    return copy


class Node:
    """What `broker.main` wires together for the metadata, and nothing else."""

    is_full = False

    def __init__(self, disk: MemoryDisk, settings: dict[str, str], *, clean: bool) -> None:
        self.disk = disk
        self.clock = HandClock()
        self.config = BrokerConfig.parse(settings)
        self._clean = clean
        self.recovery_point = 0
        self.acknowledged = MetadataImage()

    async def start(self, epoch: int = 1) -> None:
        """Up to the replay."""
        self.io = RealThreads().executor("io", 1)
        handles = Handles(self.disk)

        def open_log(start_offset: int) -> Log:
            return Log.open(
                self.disk,
                DIRECTORY,
                LogConfig(),
                now_ms=NOW_MS,
                clean=self._clean,
                recovery_point=self.recovery_point,
                start_offset=start_offset,
                handles=handles,
            )

        self.snapshots = MetadataSnapshots(self.clock, self.io, self.disk, DIRECTORY, self.config)
        starts = read_offsets(self.disk, STARTS)
        log = open_after(self.snapshots.look(), starts.get(NAME, 0), DIRECTORY, open_log)
        data = DataDirectory(self.disk, "/data")
        self.partition = lone_leader(
            NAME,
            METADATA_TOPIC_ID,
            log,
            epoch,
            TopicConfig.resolve(self.config, {}),
            FlusherInTurn(self.disk),
            TopicMetrics(METADATA_TOPIC),
            Home(data, NAME, METADATA_TOPIC_ID, is_durable=False),
        )
        self.cache = MetadataCache(self.config)
        self.controller = Runtime(
            asyncio.get_running_loop(),
            self.clock,
            self.io,
            self.partition,
            Controller(self.config, SeededRandom(epoch)),
            self.cache.committed,
            self.snapshots.newest,
        )
        self.snapshots.take_of(self.controller, self.cache, self)
        await self.snapshots.replay()
        loop = asyncio.get_running_loop()
        self.shortener = Shortener(loop, self.disk, self, self._save_start_offsets)
        self.snapshots.cut_with(self.shortener.shorten)
        self.acknowledged = copied(self.cache.image)

    # As the quorum, whose voters are a setting.

    def voters_at(self, end_offset: int) -> None:
        return None

    def forget_voters_before(self, offset: int) -> None:
        pass

    def of(self, partition: Partition) -> Node:
        """As the shortener knows the data directories."""
        return self

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self.io.run(work, *arguments)

    async def _save_start_offsets(self, partitions: Iterable[Partition]) -> None:
        entries = [(*partition.name, partition.durable_start) for partition in partitions]
        await self.io.run(self.disk.write_file, STARTS, format_lines(entries))

    async def register(self) -> None:
        endpoints = [BrokerEndpoint("PLAINTEXT", "h", 9092, 0)]
        registration = Registration(1, bytes(16), endpoints, None, [bytes(16)])
        await self.ask("register_broker", registration)
        cursor = FIRST
        while cursor is not None:
            cursor = await self.ask("raise_leader_epochs", 1, cursor)
        self.acknowledged = copied(self.cache.image)

    async def ask(self, decider: str, *arguments: Any) -> Any:
        reply = await self.controller.submit(
            lambda machine, now, ticket: getattr(machine, decider)(*arguments, now, ticket)
        )
        self.acknowledged = copied(self.cache.image)
        return reply

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        settings = [CreatableTopicConfig(key.replace("_", "."), configs[key]) for key in configs]
        topic = CreatableTopic(name, partitions, 1, [], settings)
        reply = await self.ask("create_topics", CreateTopicsRequest(topics=[topic]))
        assert reply.topics[0].error_code == 0

    async def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        await self.ask("delete_topics", request)

    def stop(self) -> None:
        self.controller.close()
        self.partition.close()

    def files(self) -> list[str]:
        return [name for name in self.disk.list(DIRECTORY) if name[0].isdigit()]

    def checkpoints(self) -> list[str]:
        return [name for name in self.files() if name.endswith(".checkpoint")]


def new_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    return disk


def live(story: Callable[[], Awaitable[Any]]) -> Any:
    """Runs a story; one that loses power ends there."""

    async def ends() -> Any:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(story())
        failures: list[Any] = []

        def fail(_: object, context: dict[str, Any]) -> None:
            failures.append(context.get("exception") or context["message"])
            task.cancel()

        loop.set_exception_handler(fail)
        try:
            return await asyncio.wait_for(task, 20)
        except (PowerLoss, asyncio.CancelledError):
            assert all(isinstance(failure, PowerLoss) for failure in failures), failures
            return None

    return asyncio.run(ends())
