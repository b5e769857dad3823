"""The world of a simulation: machines with their brokers, hosts with clients, all from one seed."""

from __future__ import annotations

import asyncio
import gc
import logging
import zlib
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from random import Random
from typing import Any, Final, Generic, Self, TypeVar

from ottla.broker.main import Broker
from ottla.log.directory import encode_uuid
from ottla.testing.memory_disk import PowerLoss
from ottla.testing.sim.clock import MachineClock
from ottla.testing.sim.loop import ProcessLoop
from ottla.testing.sim.network import Host, Network
from ottla.testing.sim.node import DATA_DIR, PORT, Node
from ottla.testing.sim.scheduler import Scheduler
from ottla.wire.messages.control_records import (
    KRaftVersionFeature,
    RegisteredVoter,
    VoterEndpoint,
    VotersRecord,
)

T = TypeVar("T")

# The client host on whose loop `World.run` runs.
WORLD: Final = "world"
SETTINGS: Final = {
    "log.dirs": DATA_DIR,
    "http.listener": "",
    "log.level": "error",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "2",
    "log.cleaner.dedupe.buffer.size": "1048576",
}
TRACED_LEVEL: Final = "info"


class Spawned(Awaitable[T], Generic[T]):
    """A coroutine at work on a client host; may be awaited from any loop of the world."""

    def __init__(self, loop: ProcessLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self._waiting: list[Callable[[], object]] = []
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._ended)
        if self._is_cancelled:
            self._task.cancel()

    def _ended(self, _: asyncio.Task[T]) -> None:
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()

    def done(self) -> bool:
        return self._task is not None and self._task.done()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._loop.call_soon(self._task.cancel)

    def result(self) -> T:
        if self._task is None:
            raise asyncio.InvalidStateError("it has not begun")
        return self._task.result()

    def __await__(self) -> Generator[Any, None, T]:
        loop = asyncio.get_running_loop()
        if not self.done():
            ended: asyncio.Future[None] = loop.create_future()
            self._waiting.append(lambda: loop.call_soon(_settle, ended))
            yield from ended.__await__()
        return self.result()


class ClientHost:
    """A machine without a broker, on whose own loop clients run."""

    def __init__(self, world: World, name: str, host: Host) -> None:
        self.name = name
        self.host = host
        self._world = world
        self._random = world.random(f"client {name}")
        self.clock = MachineClock(world.scheduler, self._random.uniform(1e3, 1e6))
        self.loop = world.new_loop(name, host, self.clock, self._random)

    def spawn(self, work: Coroutine[Any, Any, T]) -> Spawned[T]:
        """Begins it on this host's loop. `await` gives its result, or raises what it raised."""
        return Spawned(self.loop, work)

    def kill(self) -> None:
        """All its work is dropped, its connections are closed by its kernel; it may work again."""
        self.loop.kill()
        self.host.process_died(self.loop)
        self._world.bury(self.loop)
        self.loop = self._world.new_loop(self.name, self.host, self.clock, self._random)


class World:
    """`nodes` machines 1 … N with a formatted disk each, none of them started."""

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        tracing: bool = False,
        recorded_voters: bool = False,
    ) -> None:
        """With `recorded_voters` they are records of the metadata log, and no setting (KIP-853)."""
        self.seed = seed
        self.is_tracing = tracing
        self.story: list[str] = []
        # Exceptions of live processes and clients that nobody has caught.
        self.unhandled: list[str] = []
        self.scheduler = Scheduler(self.random("order"))
        self.network = Network(self.scheduler, self.random("network"))
        self._clients: dict[str, ClientHost] = {}
        # Loops of dead processes, and what belonged to them: nothing of it may end by itself.
        self._graves: list[tuple[ProcessLoop, Broker | None]] = []
        self._logging = _Logging(self) if tracing else None
        self._log_level = logging.getLogger("ottla").level
        self.client(WORLD)
        voters = ",".join(f"{n}@{_node_ip(n)}:{PORT}" for n in range(1, nodes + 1))
        given = {"log.level": TRACED_LEVEL} if tracing else {}
        shared = {**SETTINGS, **given, **(settings or {}), "controller.quorum.voters": voters}
        if recorded_voters:
            del shared["controller.quorum.voters"]
            servers = ",".join(f"{_node_ip(n)}:{PORT}" for n in range(1, nodes + 1))
            shared["controller.quorum.bootstrap.servers"] = servers
        # Brokers do it, too, but only when they have read their settings.
        logging.getLogger("ottla").setLevel(shared["log.level"].upper())
        cluster_id = encode_uuid(self.random("cluster").randbytes(16))
        self.nodes: dict[int, Node] = {}
        directories: dict[int, bytes] = {}
        for node_id in range(1, nodes + 1):
            host = self.network.add_host(node_id, _node_ip(node_id))
            own = {
                "node.id": str(node_id),
                "listeners": f"PLAINTEXT://{host.ip}:{PORT}",
            }
            node = self.nodes[node_id] = Node(self, node_id, host, {**shared, **own})
            directories[node_id] = node.format(cluster_id)
        if recorded_voters:
            self._write_voters(directories)
        if tracing:
            self.network.on_segment = self._trace_segment

    def _write_voters(self, directories: Mapping[int, bytes]) -> None:
        voters = [
            RegisteredVoter(
                node_id,
                directory_id,
                [VoterEndpoint("CONTROLLER", self.nodes[node_id].host.ip, PORT)],
                KRaftVersionFeature(0, 1),
            )
            for node_id, directory_id in directories.items()
        ]
        for node in self.nodes.values():
            node.write_voters(VotersRecord(0, voters))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------- running

    def run(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Runs it on the world's own loop until it is done; TimeoutError after `limit_s` virtual.

        In it asyncio is as everywhere: create_task, sleep, timeout, Event, the clients of
        `ottla.client`. Everything else in the world goes on while it waits. May be called again:
        the world stands still in between.
        """
        if _get_running_loop() is not None:
            raise RuntimeError("a world cannot be run from within a loop")
        spawned = self.client(WORLD).spawn(work)
        had_collector = gc.isenabled()
        # Whatever ended by itself would do so at a moment that does not follow from the seed.
        gc.disable()
        try:
            if not self.scheduler.run(spawned.done, self.now_s + limit_s):
                raise TimeoutError(f"not done after {limit_s:g} virtual seconds")
        finally:
            if had_collector:
                gc.enable()
        return spawned.result()

    async def start_all(self) -> None:
        """Starts all nodes at once, and returns when all serve."""
        await asyncio.gather(*(node.start() for node in self.nodes.values()))

    @property
    def bootstrap(self) -> tuple[str, ...]:
        """The addresses of all nodes, for `ClientSettings`."""
        return tuple(node.address for node in self.nodes.values())

    def client(self, name: str) -> ClientHost:
        """The client host of this name, which is made when it is first asked for."""
        known = self._clients.get(name)
        if known is None:
            host = self.network.add_host(name, f"10.0.1.{len(self._clients) + 1}")
            known = self._clients[name] = ClientHost(self, name, host)
        return known

    def random(self, name: str) -> Random:
        """A new source of chance that follows from the seed and the name only."""
        return Random(f"{self.seed} {name}")

    @property
    def now_s(self) -> float:
        """Virtual seconds since the world began."""
        return self.scheduler.now_s

    def close(self) -> None:
        """Ends all processes and lets everything go."""
        self.scheduler.clear()
        loops = [client.loop for client in self._clients.values()]
        loops += [node.loop for node in self.nodes.values() if node.loop is not None]
        for node in self.nodes.values():
            node.disk.on_power_loss = None
            node.disk.lose_power()
        for loop in (*loops, *(loop for loop, _ in self._graves)):
            loop.kill()
        for loop in (*loops, *(loop for loop, _ in self._graves)):
            loop.bury()
        self._graves.clear()
        if self._logging is not None:
            self._logging.end()
        logging.getLogger("ottla").setLevel(self._log_level)

    # --------------------------------------------------------------------------- for its parts

    def new_loop(self, name: str, host: Host, clock: MachineClock, chance: Random) -> ProcessLoop:
        loop = ProcessLoop(  # type: ignore[abstract]
            name, self.scheduler, clock, Random(chance.random()), self._note
        )
        loop.host = host
        return loop

    def bury(self, loop: ProcessLoop, broker: Broker | None = None) -> None:
        """It is dead; what it had is let go when the world ends."""
        self._graves.append((loop, broker))

    def _note(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, PowerLoss):
            self.unhandled.append(f"{context.get('message')}: {error!r}")
            self.trace("world", f"unhandled: {self.unhandled[-1]}")

    # ------------------------------------------------------------------------------ the story

    def trace(self, who: str, text: str) -> None:
        """A line of the story, kept only with `tracing`."""
        if self.is_tracing:
            self.story.append(f"{self.scheduler.now_s:12.6f} {who:<8} {text}")

    def _trace_segment(self, source: Host, target: Host, segment: bytes | str) -> None:
        if isinstance(segment, bytes):
            what = f"{len(segment)} bytes {zlib.crc32(segment):08x}"
        else:
            what = segment
        self.trace(str(source.name), f"-> {target.name} {what}")


class _Logging(logging.Handler):
    """Tells the world's story what brokers and clients log."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._logger = logging.getLogger("ottla")
        self._propagated = self._logger.propagate
        self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        loop = _get_running_loop()
        who = loop.name if isinstance(loop, ProcessLoop) else "thread"
        if not (isinstance(loop, ProcessLoop) and loop.is_dead):
            where = record.name.removeprefix("ottla.")
            self._world.trace(who, f"{record.levelname.lower()} {where}: {record.getMessage()}")

    def end(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated


def _node_ip(node_id: int) -> str:
    return f"10.0.0.{node_id}"


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


__all__ = ["WORLD", "ClientHost", "Network", "Node", "Spawned", "World"]
