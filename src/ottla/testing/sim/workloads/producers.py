"""Producers: the house's own client, idempotent with five in flight, or plain."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from ottla.client.lanes import SequenceLost
from ottla.client.producer import ACKS_ALL, DeliveryFailed, Producer
from ottla.testing.sim.history import Sent
from ottla.testing.sim.workloads.stage import PATIENCE_S, Stage
from ottla.types import TopicPartition
from ottla.wire.records import Record, encode_batch

# Some ten batches: who has more unanswered waits.
IN_FLIGHT_BYTES_MAX: Final = 8_000
FILLINGS: Final = (0, 0, 40, 300)
COUNTS: Final = (1, 1, 3)
# How often a producer leaves with batches under way, and another comes.
LEAVING_SHARE: Final = 0.04
TIMESTAMP_MS: Final = 1_700_000_000_000


@dataclass
class Package:
    partition: TopicPartition
    batch: bytearray
    count: int


class _Sender:
    """Packs batches, and writes down that they are sent."""

    def __init__(self, stage: Stage, name: str, acks: int, *, is_idempotent: bool) -> None:
        self.stage = stage
        self.name = name
        self.acks = acks
        self.is_idempotent = is_idempotent
        self.random: Random = stage.random(name)
        self._numbers: dict[TopicPartition, int] = {}

    def package(self, partition: TopicPartition) -> Package:
        number = self._numbers.get(partition, 0)
        self._numbers[partition] = number + 1
        count = self.random.choice(COUNTS)
        filling = b"." * self.random.choice(FILLINGS)
        values = tuple(
            b"%s %s %d/%d" % (self.name.encode(), str(partition).encode(), number, at) + filling
            for at in range(count)
        )
        sent = Sent(self.name, partition, number, values, self.acks, self.is_idempotent)
        self.stage.history.send(sent)
        records = [Record(at, TIMESTAMP_MS, None, value) for at, value in enumerate(values)]
        return Package(partition, encode_batch(records), count)

    async def live(self) -> None:
        """Until the stage is over, or by chance a bit earlier, with batches under way."""
        stage, random = self.stage, self.random
        async with stage.cluster(self.name) as cluster:
            producer = Producer(
                cluster,
                acks=self.acks,
                idempotent=self.is_idempotent,
                in_flight_bytes_max=IN_FLIGHT_BYTES_MAX,
                delivery_timeout_s=PATIENCE_S,
            )
            async with producer:
                while not stage.is_over:
                    packages = [
                        self.package(random.choice(stage.partitions))
                        for _ in range(random.choice((1, 1, 2, 7)))
                    ]
                    await producer.send(*packages)
                    if random.random() < LEAVING_SHARE:
                        return
                    await stage.pause(random, 1.2)
                await producer.flush()


class IdempotentProducer:
    """Its batches are stored once and in order, whatever happens to their answers."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name

    async def run(self) -> None:
        life = 0
        while not self._stage.is_over:
            life += 1
            sender = _Sender(self._stage, f"{self._name}.{life}", ACKS_ALL, is_idempotent=True)
            try:
                await sender.live()
            except (SequenceLost, DeliveryFailed) as error:
                # Nothing expires here, so no leader may lose count.
                self._stage.history.complain(f"{sender.name}: {error}")


class PlainProducer:
    """What it sends again may be there twice; with acks=1 it may be lost."""

    def __init__(self, stage: Stage, name: str, acks: int) -> None:
        self._stage = stage
        self._name = name
        self._acks = acks

    async def run(self) -> None:
        life = 0
        while not self._stage.is_over:
            life += 1
            sender = _Sender(self._stage, f"{self._name}.{life}", self._acks, is_idempotent=False)
            try:
                await sender.live()
            except DeliveryFailed as error:
                self._stage.history.complain(f"{sender.name}: {error}")
