"""The scrub: reads all logs, slowly and over again, and fences those that have damage.

It also looks closer, and at once, where a read has met something that is no batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ottla.broker.threads import wait_out
from ottla.config import BrokerConfig
from ottla.log.corruption import Corruption, Examined, examine, leave_note
from ottla.log.handles import Handles
from ottla.log.inspection.scrub import Stretch, slice_of
from ottla.ports import Clock, Disk

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.stores import StoresOf

logger = logging.getLogger(__name__)

ROUND_S: Final = 1.0
# A slice in a thread takes no longer than some tens of milliseconds of somebody's Python.
SLICE_BYTES_MAX: Final = 4 * 1024 * 1024
SLICES_PER_ROUND_MAX: Final = 256


class ScrubChore:
    """One round a second, each with so many bytes to read; a pass is over when all were read."""

    name = "scrub"

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        stores: StoresOf,
        handles: Handles,
        disk: Disk,
        clock: Clock,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._partitions = partitions
        self._stores = stores
        self._handles = handles
        self._disk = disk
        self._clock = clock
        self._config = config
        self._to_do: list[Partition] = []
        self._partition: Partition | None = None
        self._stretch: Stretch | None = None
        self._examined: Examined | None = None
        self._next_offset = 0
        self._is_in_pass = False
        self._pass_bytes_total = 0
        self._pass_bytes_done = 0
        self.pass_started_ms = 0
        self.last_full_pass_ms = 0
        self.bytes_read = 0
        self.corruptions_found = 0

    @property
    def pause_s(self) -> float:
        return ROUND_S

    @property
    def progress(self) -> float:
        """How much of the pass is done, from 0 to 1; 1 while none is under way."""
        if not self._is_in_pass:
            return 1.0
        return min(1.0, self._pass_bytes_done / max(1, self._pass_bytes_total))

    async def run(self) -> None:
        await self._follow_suspicions()
        budget = int(self._config().log_scrub_bytes_per_second * ROUND_S)
        if budget <= 0 or not self._is_under_way():
            return
        for _ in range(SLICES_PER_ROUND_MAX):
            if budget <= 0:
                return
            if not self._find_work():
                self._end_pass()
                return
            budget -= await self._read_slice(budget)

    # ------------------------------------------------------------------------------ the pass

    def _is_under_way(self) -> bool:
        now_ms = self._clock.now().wall_ms
        if self._is_in_pass:
            return True
        if self.pass_started_ms:
            interval_ms = self._config().log_scrub_interval_ms
            if 0 <= now_ms - self.pass_started_ms < interval_ms:
                return False
        self._to_do = list(self._partitions())
        self._is_in_pass, self.pass_started_ms = True, now_ms
        self._pass_bytes_done = 0
        self._pass_bytes_total = sum(partition.size_bytes for partition in self._to_do)
        return True

    def _end_pass(self) -> None:
        self._is_in_pass = False
        self.last_full_pass_ms = self._clock.now().wall_ms
        logger.info("scrub: all logs are read, %d bytes", self._pass_bytes_done)

    def _find_work(self) -> bool:
        """Whether there is a stretch to read; takes the next partition if need be."""
        while True:
            if self._partition is None:
                if not self._to_do:
                    return False
                self._partition, self._next_offset = self._to_do.pop(), 0
            partition = self._partition
            if partition.is_retired or partition.failure is not None:
                self._leave_partition()
                continue
            if self._stretch is None or not partition.holds(self._stretch):
                self._examined = None
                self._stretch = partition.stretch_from(self._next_offset)
            if self._stretch is not None:
                return True
            self._leave_partition()

    def _leave_partition(self) -> None:
        self._partition = self._stretch = self._examined = None

    async def _read_slice(self, budget: int) -> int:
        partition, stretch = self._partition, self._stretch
        assert partition is not None
        assert stretch is not None
        store = self._stores.of(partition)
        before = self._examined.position if self._examined is not None else 0
        try:
            examined, cost = await wait_out(
                store.run(
                    slice_of, stretch, self._handles, self._examined, min(budget, SLICE_BYTES_MAX)
                )
            )
        except OSError as error:
            if partition.holds(stretch):
                logger.warning("%s: cannot be scrubbed: %s", partition.name, error)
            self._pass_over(stretch)
            return budget
        self.bytes_read += examined.position - before
        self._pass_bytes_done += examined.position - before
        self._examined = examined
        if examined.corruption is not None:
            await self._confirm(partition, stretch)
            self._pass_over(stretch)
        elif examined.position >= stretch.end:
            self._pass_over(stretch)
        return cost

    def _pass_over(self, stretch: Stretch) -> None:
        self._next_offset = stretch.segment.base_offset + 1
        self._stretch = self._examined = None

    # ------------------------------------------------------------------------------- findings

    async def _follow_suspicions(self) -> None:
        for partition in self._partitions():
            stretch = partition.take_suspicion()
            if stretch is not None:
                await self._confirm(partition, stretch)

    async def _confirm(self, partition: Partition, stretch: Stretch) -> None:
        """Looks again, at the whole segment, and fences the partition if it is still so."""
        store = self._stores.of(partition)
        segment, end, next_base = stretch
        read = segment.reader(self._handles)
        try:
            examined = await wait_out(store.run(examine, segment, read, end, next_base))
        except FileNotFoundError as error:
            corruption: Corruption | None = Corruption(
                segment.handle.path, 0, segment.base_offset, next_base or end, str(error)
            )
        else:
            corruption = examined.corruption
        if corruption is None or not partition.holds(stretch):
            return
        self.corruptions_found += 1
        partition.condemn(corruption)
        await wait_out(store.run(leave_note, self._disk, partition.directory, corruption))
