"""Lives of a broker, by seed: load, a power cut, a start on what the disk has kept, and again.

The cut comes at an operation of the disk that the seed chooses, in a start, under load, in a stop,
or when all is quiet. That operation hangs for a moment, so that answers which were given too early
reach their clients, and then there is no power.
"""

from __future__ import annotations

import asyncio
import threading
from random import Random

from ottla.log.checkpoints import HIGH_WATERMARKS, read_offsets
from ottla.testing.disks import MemoryDisk
from sim.caller import Caller
from sim.checker import Checker
from sim.history import Broken, History
from sim.load import KEPT_TOPICS, Load
from sim.machine import Machine, in_haste, run_on, threads_may_lose_power

CUTS_PER_LIFE = 5
HANG_S = 0.004
CHECKPOINT_S_MAX = 20.0
ROUND_S_MAX = 60.0


class Life:
    """One disk after another, one history for all of them."""

    is_faulty = False
    looks_at_batches = True
    sees_checkpoints = True
    idempotent = 1

    def __init__(self, seed: int, **settings: str) -> None:
        self.random = Random(seed)
        self.history = History()
        self.disk = MemoryDisk(forgets_directories=True)
        self.disk.make_directory("/disks")
        self.disk.sync_directory("/")
        self.disk.file_system_share = self.random.choice((0.0, 0.3, 1.0))
        self.directories = ["/disks/a"] if self.random.random() < 0.6 else ["/disks/a", "/disks/b"]
        self.settings = self._settings() | {k.replace("_", "."): v for k, v in settings.items()}
        self._stalls = threading.Event()

    def _settings(self) -> dict[str, str]:
        random = self.random
        return {
            "log.dirs": ",".join(self.directories),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "http.listener": "",
            "log.level": "error",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "2",
            "log.cleaner.enable": "false",
            "log.retention.check.interval.ms": "20",
            "log.segment.delete.delay.ms": "0",
            "log.flush.offset.checkpoint.interval.ms": str(random.choice((5, 20, 60_000))),
            "metadata.log.max.record.bytes.between.snapshots": str(
                random.choice((500, 3000, 10**7))
            ),
        }

    # ------------------------------------------------------------------------------- its course

    def live(self, cuts: int = CUTS_PER_LIFE) -> None:
        with in_haste(), threads_may_lose_power():
            for _ in range(cuts):
                run_on(self.round())
                if self.looks_at_batches:
                    self.history.look_at(self.disk)
                self.history.cuts += 1
                self.disk = self.after_cut()
            self.disk.hang = None
            run_on(self.last_look())

    def after_cut(self) -> MemoryDisk:
        return self.disk.after_crash(self.random)

    async def round(self) -> None:
        """From a start to a cut."""
        disk, random = self.disk, self.random
        disk.hang = self._hang
        when = random.choice(("starting", "working", "working", "working", "quiet", "stopping"))
        if when == "starting":
            disk.lose_power_in(random.randrange(40))
        machine = Machine(disk, self.settings, faulty=self.is_faulty)
        try:
            await machine.run(self._work(machine, when), ROUND_S_MAX)
        finally:
            await machine.abandon()
        if machine.unhandled:
            raise Broken(f"unforeseen: {machine.unhandled}")

    async def _work(self, machine: Machine, when: str) -> None:
        await machine.start()
        share = self.random.choice((6, 15, 30))
        load = Load(machine, self.history, self.random, share, self.idempotent)
        try:
            await Checker(machine, self.history, await load.caller()).check()
            if when == "working":
                machine.disk.lose_power_in(self.random.randrange(self.random.choice((10, 60, 300))))
            await load.make_kept_topics()
            self.make_trouble(machine)
            await load.run()
            if when == "quiet" and self.sees_checkpoints:
                await self._see_checkpoint(machine)
            if when == "stopping":
                load.close()
                machine.disk.lose_power_in(self.random.choice((self.random.randrange(40), 10**6)))
                await machine.broker.stop()
        finally:
            load.close()

    def make_trouble(self, machine: Machine) -> None:
        """Nothing but the cut."""

    def _hang(self) -> None:
        self._stalls.wait(HANG_S)

    async def _see_checkpoint(self, machine: Machine) -> None:
        """Where nothing is written any more, the high watermarks come to their file."""
        if self.settings["log.flush.offset.checkpoint.interval.ms"] == "60000":
            return
        wanted = {
            p.name: p.shown_end
            for name in KEPT_TOPICS
            for p in self.history.name(name).partitions
            if p.shown_end
        }
        deadline_s = asyncio.get_running_loop().time() + CHECKPOINT_S_MAX
        while True:
            found: dict[str, int] = {}
            for directory in self.directories:
                offsets = read_offsets(machine.disk, f"{directory}/{HIGH_WATERMARKS}")
                found |= {str(name): offset for name, offset in offsets.items()}
            late = {n: e for n, e in wanted.items() if found.get(n, 0) < e}
            if not late:
                return
            if asyncio.get_running_loop().time() > deadline_s:
                raise Broken(f"{HIGH_WATERMARKS} says {found}, consumers were shown {late}")
            await asyncio.sleep(0.002)

    async def last_look(self) -> None:
        machine = Machine(self.disk, self.settings, faulty=False)
        try:
            await machine.start()
            caller = await Caller.connect(machine.disk, machine.address)
            await Checker(machine, self.history, caller).check()
            caller.close()
        finally:
            await machine.abandon()
