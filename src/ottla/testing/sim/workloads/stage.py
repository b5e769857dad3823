"""What all clients of a run share: the world, the history, and when it is time to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ottla.client.cluster import Cluster
from ottla.client.failures import code_name
from ottla.client.settings import ClientSettings
from ottla.client.values import Produced
from ottla.testing.sim.history import History, Sent
from ottla.types import TopicPartition
from ottla.wire.records import decode_records
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.testing.sim.world import Spawned, World

CONNECT_TIMEOUT_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 4.0
# Longer than any run: who gives up earlier would hide that a cluster is stuck.
PATIENCE_S: Final = 100_000.0
DONE_CODES: Final = (0, 46)  # NONE, DUPLICATE_SEQUENCE_NUMBER


class Stage:
    """One run's clients. Their loops differ, so they look at `is_over` and wait for no event."""

    def __init__(self, world: World, history: History, partitions: list[TopicPartition]) -> None:
        self.world = world
        self.history = history
        self.partitions = partitions
        # No more faults, though the load goes on.
        self.is_healed = False
        self.is_over = False
        self.spawned: dict[str, Spawned[None]] = {}

    def random(self, name: str) -> Random:
        return self.world.random(name)

    def cluster(self, name: str) -> WatchedCluster:
        return WatchedCluster(
            self.history,
            ClientSettings(
                bootstrap=self.world.bootstrap,
                client_id=name,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                request_timeout_s=REQUEST_TIMEOUT_S,
                retry_timeout_s=PATIENCE_S,
            ),
        )

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """On a host of its own."""
        self.spawned[name] = self.world.client(name).spawn(work)

    def under_way(self) -> list[str]:
        return [name for name, work in self.spawned.items() if not work.done()]

    async def pause(self, random: Random, seconds_max: float) -> None:
        await asyncio.sleep(random.random() * seconds_max)


class WatchedCluster(Cluster):
    """Writes down what each produced batch was answered."""

    def __init__(self, history: History, settings: ClientSettings) -> None:
        super().__init__(settings)
        self._history = history

    async def produce(
        self, batches: Mapping[TopicPartition, Buffer], *, acks: int, timeout_ms: int
    ) -> dict[TopicPartition, Produced]:
        answers = await super().produce(batches, acks=acks, timeout_ms=timeout_ms)
        for partition, answer in answers.items():
            sent = self._sent(batches[partition])
            if sent is None:
                continue
            if answer.error_code in DONE_CODES:
                self._history.acknowledge(sent, answer.base_offset)
            else:
                self._history.refuse(sent, code_name(answer.error_code))
        return answers

    def _sent(self, batch: Buffer) -> Sent | None:
        value = decode_records(batch)[0].value
        return None if value is None else self._history.sent.get(value)
