"""Readers that poll partitions from their beginning, and one that watches where they end."""

from __future__ import annotations

from typing import Final

from ottla.client.failures import OffsetOutOfRange
from ottla.client.values import LATEST
from ottla.errors import UnknownTopicId, UnknownTopicOrPartition
from ottla.testing.sim.history import Read
from ottla.testing.sim.workloads.stage import Stage
from ottla.types import TopicPartition
from ottla.wire.records import crc_matches, decode_records, headers_in
from ottla.wire.schema import Buffer

FETCH_BYTES: Final = 20_000
FETCH_WAIT_MS: Final = 400
UNKNOWN: Final = (UnknownTopicId, UnknownTopicOrPartition)


class Reader:
    """Reads one partition after the other, each where it had stopped."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name

    async def run(self) -> None:
        stage, random = self._stage, self._stage.random(self._name)
        positions: dict[TopicPartition, int] = {}
        async with stage.cluster(self._name) as cluster:
            while not stage.is_over:
                partition = random.choice(stage.partitions)
                position = positions.get(partition, 0)
                try:
                    fetched = await cluster.fetch(
                        partition, position, max_bytes=FETCH_BYTES, max_wait_ms=FETCH_WAIT_MS
                    )
                except UNKNOWN as error:
                    # A node that starts does not know its topics yet; this client gives up then.
                    stage.history.refusals[type(error).__name__] += 1
                    await stage.pause(random, 0.4)
                    continue
                except OffsetOutOfRange as error:
                    stage.history.complain(f"{self._name}: {error}")
                    positions[partition] = max(0, min(position, error.high_watermark))
                    continue
                if not is_intact(fetched.records):
                    # Whoever leads finds out, and lets another one lead.
                    stage.history.refusals["CorruptMessage"] += 1
                    await stage.pause(random, 0.4)
                    continue
                records = records_in(fetched.records, position)
                stage.history.read(
                    Read(self._name, partition, position, fetched.high_watermark, records)
                )
                if records:
                    positions[partition] = records[-1][0] + 1
                await stage.pause(random, 0.5)


class EndWatcher:
    """Asks for the ends of all partitions, over and over."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name

    async def run(self) -> None:
        stage, random = self._stage, self._stage.random(self._name)
        async with stage.cluster(self._name) as cluster:
            while not stage.is_over:
                partition = random.choice(stage.partitions)
                try:
                    found = await cluster.list_offsets({partition: LATEST})
                except UNKNOWN as error:
                    stage.history.refusals[type(error).__name__] += 1
                    await stage.pause(random, 0.4)
                    continue
                stage.history.see_end(self._name, partition, found[partition].offset)
                await stage.pause(random, 1.0)


def is_intact(data: Buffer) -> bool:
    """As clients check it."""
    return all(crc_matches(data, at, header) for at, header in headers_in(data))


def records_in(data: Buffer, position: int) -> tuple[tuple[int, int, bytes], ...]:
    """Offset, epoch and value of each record from `position` on."""
    return tuple(
        (record.offset, header.leader_epoch, record.value or b"")
        for at, header in headers_in(data)
        if not header.is_control
        for record in decode_records(data, at)
        if record.offset >= position
    )
