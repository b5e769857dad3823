"""A broker that is stopped, or loses its power, while its disks are full: it starts again."""

from __future__ import annotations

import pytest

from ottla.testing.disks import MemoryDisk
from sim.caller import Caller
from sim.checker import Checker
from sim.history import Broken
from sim.life import ROUND_S_MAX
from sim.machine import Machine, in_haste, run_on, threads_may_lose_power
from sim.troubles import Full


class Filled(Full):
    """Filled to the last byte, stopped, and started on the same disk, as full as before."""

    def make_trouble(self, machine: Machine) -> None:
        disk = machine.disk
        total, free = disk.room_bytes("/disks")
        disk.capacity_bytes = total - free + self.random.randrange(4000)

    def fill_and_stop(self) -> None:
        with in_haste(), threads_may_lose_power():
            run_on(self._fill_and_stop())

    async def _fill_and_stop(self) -> None:
        machine = Machine(self.disk, self.settings, faulty=False)
        try:
            await machine.run(self._work(machine, "stopping for good"), ROUND_S_MAX)
            await machine.run(machine.broker.stop(), ROUND_S_MAX)
            self.copy = self.disk.after_stop()
        finally:
            await machine.abandon()

    async def look(self, disk: MemoryDisk) -> None:
        machine = Machine(disk, self.settings, faulty=False)
        try:
            await machine.start()
            caller = await Caller.connect(disk, machine.address)
            await Checker(machine, self.history, caller).check()
            caller.close()
        finally:
            await machine.abandon()


def start_on_a_full_disk(seed: int) -> None:
    life = Filled(seed)
    life.fill_and_stop()
    disk = life.copy
    disk.capacity_bytes = disk.used_bytes()
    with in_haste(), threads_may_lose_power():
        try:
            run_on(life.look(disk))
        except OSError as error:
            raise Broken(f"seed {seed}: a broker on a full disk does not start: {error}") from error


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_broker_stopped_on_a_full_disk_starts_again_and_serves_what_it_holds(seed: int) -> None:
    start_on_a_full_disk(seed)
