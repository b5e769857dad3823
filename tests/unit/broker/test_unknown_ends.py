"""A new leader whose followers have not told yet what they have names no end (KIP-207)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.counters import TopicMetrics
from ottla.broker.handlers import list_offsets
from ottla.broker.network.waiting import Deadlines
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ErrorCode
from ottla.log.corruption import Corruption
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.types import LeaderEpoch, NodeId, TopicId, TopicPartition
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.scanning import all_at_once
from records_kit import NOW_MS, batch

OWN, OTHER = NodeId(1), NodeId(2)
TOPIC_ID = TopicId(bytes(16))
NAME = TopicPartition("t", 0)
LIFE = 5
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NONE, NOT_AVAILABLE = ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE


class NoFlusher:
    is_full = is_holding = is_overloaded = False

    def queue(self, partition: object) -> None: ...


def new_leader() -> Partition:
    """It has a message of which it does not know whether it was committed."""
    disk = MemoryDisk()
    disk.make_directory("/data")
    data = DataDirectory(disk, "/data")
    log = Log.open(disk, data.partition_path(NAME), LogConfig(), now_ms=NOW_MS, clean=True)
    config = TopicConfig.resolve(BrokerConfig(), {})
    flusher: Any = NoFlusher()
    home = Home(data, NAME, TOPIC_ID, is_durable=False)
    metrics = TopicMetrics("t")
    partition = Partition(NAME, TOPIC_ID, log, LeaderEpoch(0), config, flusher, metrics, home, OWN)
    for epoch in (1, 2):
        partition.lead(LeaderEpoch(epoch), (OWN, OTHER), (OWN, OTHER), 0, 0)
        if epoch == 1:
            partition.append(batch(b"value"), NOW_MS)
            partition.write_queued()
            ticket = partition.begin_sync()
            assert ticket is not None
            disk.sync_many(ticket.files, ticket.directories)
            partition.finish_sync(ticket)
    assert partition.high_watermark.offset == 0
    return partition


class ThisThread:
    """Looks up at once."""

    async def look_up(self, work: Any, *arguments: Any) -> Any:
        return work(*arguments)


async def answer(partition: Partition, timestamp: int, version: int) -> tuple[int, int]:
    services = SimpleNamespace(
        deadlines=Deadlines(asyncio.get_running_loop()),
        opening=SimpleNamespace(go_through=all_at_once),
        partitions=SimpleNamespace(get=lambda topic, index: partition),
        stores=SimpleNamespace(of=lambda partition: ThisThread()),
    )
    asked = ListOffsetsPartition(0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic("t", [asked])])
    context = RequestContext(2, version, 0, None, "", "", {})
    outcome = list_offsets.handle(cast(Services, services), context, request)
    response = outcome if not asyncio.iscoroutine(outcome) else await outcome
    told = response.topics[0].partitions[0]  # type: ignore[union-attr]
    return told.error_code, told.offset


@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP, 0])
@pytest.mark.parametrize(
    ("version", "error"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, NOT_AVAILABLE)]
)
def test_who_asks_for_what_it_does_not_know_is_to_ask_again(
    timestamp: int, version: int, error: ErrorCode
) -> None:
    async def story() -> None:
        partition = new_leader()
        assert await answer(partition, timestamp, version) == (error, -1)
        assert await answer(partition, EARLIEST, version) == (NONE, 0)
        assert partition.fetched_by(OTHER, LIFE, 1, 0)
        told = await answer(partition, timestamp, version)
        assert told == (NONE, 1 if timestamp == LATEST else 0)

    asyncio.run(story())


def test_a_leader_whose_log_is_damaged_does_not_know_the_end_either() -> None:
    async def story() -> None:
        partition = new_leader()
        partition.condemn(Corruption("0.log", 0, 0, 1, "decayed"))
        assert await answer(partition, LATEST, 5) == (NOT_AVAILABLE, -1)

    asyncio.run(story())
