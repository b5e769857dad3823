"""Topics whose syncs a test holds back until somebody waits for them."""

from __future__ import annotations

import errno
from pathlib import Path

from ottla.broker.storage.partition import Partition
from scenarios.in_process import BrokerInside
from scenarios.polling import until


class HeldSyncs:
    def __init__(self, broker: BrokerInside, directory: Path) -> None:
        self._broker = broker
        self._directory = directory

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self._broker.node._partitions.get(topic, index)

    def path(self, topic: str, index: int = 0) -> str:
        return str(self._directory / f"{topic}-{index}")

    def hold(self, topic: str, index: int = 0) -> None:
        self._broker.disk.hold("sync", under=self.path(topic, index))

    def heal(self) -> None:
        self._broker.disk.heal()

    def fail(self, operation: str, topic: str) -> None:
        """What is held goes on and fails, once; without a moment in between."""
        disk = self._broker.disk
        with disk._change:
            disk.heal()
            disk.fail(operation, errno.ENOSPC, under=self.path(topic), times=1)

    def look_ups(self, topic: str, index: int = 0) -> list[int]:
        """How many look-ups wait, per end that they wait for."""

        async def look() -> list[int]:
            return self.partition(topic, index).waiters.look_ups()

        counts: list[int] = self._broker.call(look())
        return counts

    def until_looked_up(self, topic: str, index: int = 0) -> None:
        until(lambda: any(self.look_ups(topic, index)), "a look-up that waits")

    def until_fetched(self, topic: str, index: int = 0) -> None:
        until(lambda: self.partition(topic, index).waiters.fetches, "a fetch that waits")

    def until_synced(self, topic: str, end_offset: int, index: int = 0) -> None:
        until(
            lambda: self.partition(topic, index).high_watermark.offset >= end_offset,
            f"a sync up to {end_offset}",
        )
