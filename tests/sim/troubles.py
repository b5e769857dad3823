"""Lives on disks that do more than lose power: they refuse, fill up, fail to sync, and let wait."""

from __future__ import annotations

import asyncio
import errno
import threading

from ottla.testing.disks import MemoryDisk
from ottla.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from sim.caller import Caller, Gone
from sim.life import Life
from sim.machine import Machine

HELD_S = 0.02
SYNC_S = 0.001
LONG_SYNC_S = 0.08
TROUBLES_MAX = 3


class CachedByDefault(Life):
    """Topics are cached unless they say otherwise; what is the broker's own never is."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, log_write_caching="true")


class Refused(Life):
    """The disk is full for a write, or for some: what it refused, clients send again."""

    # Of a refused write something may be left behind that a crash brings back, at its old place.
    looks_at_batches = False
    sees_checkpoints = False
    idempotent = 3

    def make_trouble(self, machine: Machine) -> None:
        random = self.random
        for _ in range(random.randint(1, 8)):
            machine.disk.fail(
                random.choice(("write", "write", "write", "create")),
                errno.ENOSPC,
                times=random.choice((1, 1, 2, 6)),
                after=random.randrange(random.choice((5, 30, 100))),
                under=random.choice(("", *self.partition_paths())),
                torn_bytes=random.choice((None, 0, 700)),
            )

    def partition_paths(self) -> list[str]:
        """Of partitions with files, and of such as may get some."""
        names = [p.name for n in self.history.names.values() for p in n.partitions]
        return [
            f"{directory}/{name}" for directory in self.directories for name in names or ["main-0"]
        ]


class Full(Life):
    """There is room for so much and no more; when the power is back, so is some room."""

    looks_at_batches = False
    sees_checkpoints = False
    idempotent = 3

    def make_trouble(self, machine: Machine) -> None:
        disk = machine.disk
        total, free = disk.room_bytes("/disks")
        disk.capacity_bytes = total - free + self.random.randrange(30_000)

    def after_cut(self) -> MemoryDisk:
        disk = super().after_cut()
        disk.capacity_bytes = None
        return disk


class FailedSyncs(Life):
    """A sync fails, as it does on a file system that learns late that it is full.

    The partition is fenced, and opened again where it was synced. The next sync takes its time,
    so that it is still under way when that happens.
    """

    sees_checkpoints = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed, log_flush_offset_checkpoint_interval_ms="5")
        self.disk.file_system_share = 0.0
        self._slow: dict[str, int] = {}
        self._pause = threading.Event()

    def make_trouble(self, machine: Machine) -> None:
        random, disk = self.random, machine.disk
        disk.on_failure = lambda operation, path: self._failing(disk, operation, path)
        disk.delay = self._delay
        names = [p.name for n in self.history.names.values() for p in n.partitions]
        for _ in range(random.randint(1, TROUBLES_MAX)):
            name = random.choice(names or ["main-0"])
            for directory in self.directories:
                disk.fail(
                    "sync", errno.ENOSPC, after=random.randrange(6), under=f"{directory}/{name}"
                )

    def _failing(self, disk: MemoryDisk, operation: str, path: str) -> None:
        """What is written up to here a follower may have, whatever becomes of it now."""
        if path.endswith(".log"):
            if self.looks_at_batches:
                self.history.look_at(disk, under=path)
            # Longer than it takes to open the log again.
            self._slow[path] = 1

    def _delay(self, operation: str, path: str) -> None:
        """Each sync takes a while, in which more is written; the next after a failure longer."""
        if operation == "sync" and path.endswith(".log"):
            slow = self._slow.get(path, 0)
            self._slow[path] = max(0, slow - 1)
            self._pause.wait(LONG_SYNC_S if slow else SYNC_S)


class LostDirectory(Life):
    """The second disk dies: its partitions are offline until the next start, all others go on."""

    sees_checkpoints = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed, metadata_log_dir="/disks/m", log_dirs="/disks/a,/disks/b")
        self.directories = ["/disks/a", "/disks/b"]

    def make_trouble(self, machine: Machine) -> None:
        if self.random.random() < 0.7:
            operation = self.random.choice(("sync", "write", "create"))
            after = self.random.randrange(30)
            machine.disk.fail(operation, errno.EIO, times=10**6, after=after, under="/disks/b")


class Held(Life):
    """Making a file takes long now and then."""

    is_faulty = True

    def make_trouble(self, machine: Machine) -> None:
        disk = machine.trouble
        assert disk is not None
        disk.hold(self.random.choice(("open", "open", "rename")))
        # Not the loop's timer: whoever makes files on the loop stands still here.
        timer = threading.Timer(HELD_S, disk.heal)
        timer.daemon = True
        timer.start()


class Moved(Life):
    """Partitions move from one directory to the other and back, all the time."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, log_dirs="/disks/a,/disks/b,/disks/c")
        self.directories = ["/disks/a", "/disks/b", "/disks/c"]
        self._moving: asyncio.Task[None] | None = None

    def make_trouble(self, machine: Machine) -> None:
        # The task is kept, or it might end half-way; with the machine it goes.
        self._moving = asyncio.get_running_loop().create_task(self._move_on(machine))

    async def _move_on(self, machine: Machine) -> None:
        random = self.random
        try:
            caller = await Caller.connect(machine.disk, machine.address)
            while not machine.off.is_set():
                names = [p for n in self.history.names.values() for p in n.partitions]
                topics = [
                    AlterReplicaLogDirTopic(each.topic, [each.index])
                    for each in random.sample(names, min(len(names), 3))
                ]
                wanted = AlterReplicaLogDir(random.choice(self.directories), topics)
                await caller.ask(AlterReplicaLogDirsRequest(dirs=[wanted]), 2)
                await asyncio.sleep(random.choice((0.0, 0.005, 0.02)))
        except Gone:
            return


LIVES: dict[str, type[Life]] = {
    "cut": Life,
    "cached": CachedByDefault,
    "refused": Refused,
    "full": Full,
    "failed-syncs": FailedSyncs,
    "lost-directory": LostDirectory,
    "held": Held,
    "moved": Moved,
}
