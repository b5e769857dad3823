"""One machine of the cluster: a disk, clocks, a place on the network, and perhaps a broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.main import Broker
from ottla.cluster.snapshot_file import SnapshotFiles
from ottla.config import BrokerConfig
from ottla.errors import OttlaError
from ottla.log.directory import DataDirectory, Identity
from ottla.log.scan import batches
from ottla.testing.memory_disk import MemoryDisk, PowerLoss
from ottla.testing.sim.clock import MachineClock, SeededChance
from ottla.testing.sim.compactor import ThreadCompactor
from ottla.testing.sim.loop import ProcessLoop
from ottla.testing.sim.network import Host, Listener
from ottla.testing.sim.threads import DiskPace, SimThreads
from ottla.types import METADATA_TOPIC
from ottla.wire.messages.control_records import VotersRecord
from ottla.wire.records import MAGIC_AT

if TYPE_CHECKING:
    from ottla.testing.sim.world import World

PORT: Final = 9092
DATA_DIR: Final = "/data"


class NotRunning(OttlaError):
    """The process that was waited for is gone."""


class HostNetwork:
    """Implements `ottla.ports.Network` for one process."""

    def __init__(self, host: Host, loop: ProcessLoop) -> None:
        self._host = host
        self._loop = loop

    async def bind(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        backlog: int,
        *,
        is_shared: bool = False,
    ) -> Listener:
        assert not is_shared, "a simulated machine has one process"
        return await self._host.bind(self._loop, protocol_factory, port, backlog)

    async def is_own(self, host: str) -> bool:
        return host in (self._host.name, self._host.ip)


class Process:
    """A broker from its start to its end, as `ottla start` runs it."""

    def __init__(self, node: Node, broker: Broker, loop: ProcessLoop) -> None:
        self.broker = broker
        self.loop = loop
        self.is_ready = False
        self.failure: BaseException | None = None
        self._node = node
        self._told_to_stop = asyncio.Event()
        # Told, outside of all loops, when it serves and when it has ended.
        self.watchers: list[Callable[[], object]] = []

    def begin(self) -> None:
        self.loop.spawn(self._live(), self._ended)

    def tell_to_stop(self) -> None:
        self.loop.call_soon(self._told_to_stop.set)

    async def _live(self) -> None:
        broker = self.broker
        await broker.start()
        self.is_ready = True
        self._tell()
        told = self.loop.create_task(self._told_to_stop.wait())
        await asyncio.wait((told, broker.given_up), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if broker.given_up.done():
            self._node.trace(f"gives up: {broker.given_up.result()}")
        await broker.stop()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.failure = None if task.cancelled() else task.exception()
        if self.failure is not None:
            self._node.trace(f"ends: {type(self.failure).__name__}: {self.failure}")
        self._node.process_ended(self)

    def gone(self) -> None:
        self._tell()

    def _tell(self) -> None:
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()


class Node:
    """`kill` takes the process, `power_cut` the machine with all that its disk had not synced."""

    def __init__(self, world: World, node_id: int, host: Host, settings: Mapping[str, str]) -> None:
        self.id = node_id
        self.host = host
        self.address = f"{host.ip}:{PORT}"
        self.incarnation = 0
        self._world = world
        self._settings = dict(settings)
        self._random = world.random(f"node {node_id}")
        self.clock = MachineClock(world.scheduler, self._random.uniform(1e3, 1e6))
        self._pace = DiskPace()
        self._process: Process | None = None
        self.disk = MemoryDisk(forgets_directories=True)
        self.disk.file_system_share = self._random.choice((0.0, 0.3, 1.0))

    def __repr__(self) -> str:
        return f"<Node {self.id}>"

    def format(self, cluster_id: str) -> bytes:
        """As `ottla storage format` does it; returns the directory id."""
        self.disk.make_directory(DATA_DIR)
        identity = Identity(cluster_id, self.id, self._random.randbytes(16))
        DataDirectory(self.disk, DATA_DIR).write_identity(identity)
        self.disk.sync_directory("/")
        return identity.directory_id

    def write_voters(self, voters: VotersRecord) -> None:
        """The rest of it, where the voters are records."""
        directory = f"{DATA_DIR}/{METADATA_TOPIC}-0"
        self.disk.make_directory(directory)
        SnapshotFiles(self.disk, directory).write_first(voters, 0)
        self.disk.sync_directory(DATA_DIR)

    def trace(self, text: str) -> None:
        self._world.trace(f"node {self.id}", text)

    @property
    def broker(self) -> Broker | None:
        """The live one, also while it starts and while it is paused."""
        return None if self._process is None else self._process.broker

    @property
    def loop(self) -> ProcessLoop | None:
        return None if self._process is None else self._process.loop

    @property
    def is_running(self) -> bool:
        """There is a process, be it paused."""
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        """Its broker has started, and has not been told to stop."""
        return self._process is not None and self._process.is_ready

    @property
    def is_paused(self) -> bool:
        return self._process is not None and self._process.loop.is_paused

    # ------------------------------------------------------------------------------ starting

    def start_soon(self) -> None:
        """A new process, for whose start nobody waits; if it fails, the process is gone."""
        if self._process is not None:
            raise RuntimeError(f"node {self.id} is running")
        self.incarnation += 1
        if not self.host.is_on:
            self.host.power_on()
        chance = self._world.random(f"node {self.id} process {self.incarnation}")
        loop = self._world.new_loop(f"node {self.id}", self.host, self.clock, chance)
        disk = self.disk
        disk.on_power_loss = partial(self._power_lost, disk)
        threads = SimThreads(loop, random.Random(chance.random()), self._pace)

        async def start_compactor() -> ThreadCompactor:
            return ThreadCompactor(disk, threads)

        broker = Broker(
            BrokerConfig.parse(self._settings),
            disk,
            clock=self.clock,
            random=SeededChance(random.Random(chance.random())),
            threads=threads,
            network=HostNetwork(self.host, loop),
            start_compactor=start_compactor,
        )
        self._process = Process(self, broker, loop)
        self.trace(f"starts, incarnation {self.incarnation}")
        self._process.begin()

    async def start(self) -> None:
        """A new process, whose broker has started when this returns. Raises what it raises."""
        self.start_soon()
        process = self._process
        assert process is not None
        await self._until(process, lambda: process.is_ready or self._process is not process)
        if process.failure is not None:
            raise process.failure
        if not process.is_ready:
            raise NotRunning(f"node {self.id} was gone before it served")

    async def stop(self) -> None:
        """Cleanly, as by SIGTERM. Returns when the process is gone."""
        process = self._process
        if process is not None:
            self.trace("is told to stop")
            process.tell_to_stop()
            await self._until(process, lambda: self._process is not process)
            if process.failure is not None:
                raise process.failure

    async def _until(self, process: Process, is_so: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while not is_so():
            change = loop.create_future()
            process.watchers.append(partial(loop.call_soon, _settle, change))
            await change

    def process_ended(self, process: Process) -> None:
        """By itself."""
        if self._process is process:
            self.trace("has ended")
            self._bury(self.disk.after_stop(), process)

    # -------------------------------------------------------------------------- sudden deaths

    def kill(self) -> None:
        """The process dies at once; what it has written stays in the page cache."""
        process = self._process
        if process is not None:
            self.trace("is killed")
            self._bury(self.disk.after_stop(), process)

    def power_cut(self, in_operations: int | None = None) -> None:
        """The machine goes dark: unsynced writes are lost or torn, peers hear nothing.

        With `in_operations` in the middle of what it does to its disk: at the operation that comes
        so many after this one.
        """
        if in_operations is None:
            self._power_lost(self.disk)
        else:
            self.disk.lose_power_in(in_operations)

    def _power_lost(self, disk: MemoryDisk) -> None:
        if disk is not self.disk:
            return
        self.trace("loses its power")
        self.host.power_off()
        after = disk.after_crash(self._random)
        process = self._process
        if process is not None:
            self._bury(after, process)
        else:
            self._change_disk(after)

    def _bury(self, disk: MemoryDisk, process: Process) -> None:
        self._process = None
        process.loop.kill()
        if self.host.is_on:
            self.host.process_died(process.loop)
        self._change_disk(disk)
        self._world.bury(process.loop, process.broker)
        process.gone()

    def _change_disk(self, disk: MemoryDisk) -> None:
        """What is left of the process sees a disk without power, and the next one this."""
        before, self.disk = self.disk, disk
        disk.capacity_bytes = before.capacity_bytes
        disk.file_system_share = before.file_system_share
        before.lose_power()

    # ---------------------------------------------------------------------------- stand-stills

    def pause(self) -> None:
        """SIGSTOP: its kernel goes on taking connections and bytes."""
        if self._process is not None:
            self.trace("is paused")
            self._process.loop.pause()

    def resume(self) -> None:
        if self._process is not None:
            self.trace("is resumed")
            self._process.loop.resume()

    # ------------------------------------------------------------------------------ the disk

    def hang_disk(self) -> None:
        """Whatever a thread asks of the disk does not come back until `heal_disk`."""
        self.trace("its disk hangs")
        self._pace.is_hung = True

    def slow_disk(self, factor: float) -> None:
        """What threads do takes so many times as long."""
        self.trace(f"its disk takes {factor:g} times as long")
        self._pace.factor = factor

    def heal_disk(self) -> None:
        """No hanging, no slowness, no faults, room enough."""
        self.trace("its disk is well")
        self.disk.heal()
        self.disk.capacity_bytes = None
        for go_on in self._pace.heal():
            go_on()

    def flip_bit(self, random: random.Random, under: str = "") -> str | None:
        """Damages a batch of a segment on the medium; its path, or None if there is none.

        Not its base offset nor its leader epoch: Kafka's checksum covers neither, and nothing
        notices what becomes of them.
        """
        paths = [path for path in self.disk.paths_seen() if path.endswith(".log")]
        paths = [path for path in paths if path.startswith(under) and self.disk.contents(path)]
        if not paths:
            return None
        path = random.choice(paths)
        data = self.disk.contents(path)
        whole = [*batches(lambda size, at: data[at : at + size], 0, len(data))]
        if not whole:
            return None
        position, header, _ = random.choice(whole)
        self.disk.flip_bit(
            path, 8 * (position + random.randrange(MAGIC_AT, header.size)) + random.randrange(8)
        )
        self.trace(f"a bit of {path} is flipped")
        return path

    # ----------------------------------------------------------------------------- the clocks

    def step_clock(self, seconds: float) -> None:
        """Its wall clock jumps; the steady one does not."""
        self.trace(f"its wall clock jumps by {seconds:g} s")
        self.clock.step(seconds)

    def drift_clock(self, rate: float) -> None:
        """From now on both its clocks run so fast: 1.0 is right."""
        self.trace(f"its clocks run at {rate:g}")
        self.clock.drift(rate)
        if self._process is not None:
            self._process.loop.clock_changed()


def _settle(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


__all__ = ["DATA_DIR", "PORT", "Node", "NotRunning", "PowerLoss", "Process"]
