"""What befalls a cluster: a plan that follows from the seed, and its carrying out.

A run has a few kinds of trouble only, and more of each: mixtures of everything hide in one another
what each of them would find. Any number of nodes may be down at once; all come back.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.testing.sim.node import DATA_DIR
from ottla.testing.sim.observing import partitions_in_sync

if TYPE_CHECKING:
    from ottla.testing.sim.world import Node, World

KINDS_PER_RUN_MAX: Final = 4
PAUSE_S_MEAN: Final = 3.0
# One of them is a little longer than a session, which is how long a lease is.
DURATIONS_S: Final = (0.2, 1.0, 3.0, 6.0, 9.2, 12.0, 20.0)
# How soon whoever supervises a process starts it again.
RESTART_S: Final = 1.0
SUPERVISION_S: Final = 0.5
CLOCK_STEPS_S: Final = (-600.0, -30.0, -1.0, 1.0, 30.0, 600.0)
DRIFTS: Final = (0.9, 0.99, 1.01, 1.1)
DELAYS_S: Final = (0.02, 0.2, 1.0, 3.0)
LOSSES: Final = (0.05, 0.3)
SLOWNESS: Final = (5.0, 50.0)
DARK_S: Final = (0.2, 3.0)
ROOM_BYTES: Final = (0, 500, 5_000)


class Trouble(NamedTuple):
    at_s: float
    kind: str
    nodes: tuple[int, ...]
    for_s: float
    # What it means depends on the kind: a delay, a rate, a number of operations.
    amount: float

    def __str__(self) -> str:
        nodes = " and ".join(map(str, self.nodes))
        return f"{self.kind} of {nodes} for {self.for_s:g} s ({self.amount:g})"


def plan(
    random: Random, nodes: Sequence[int], seconds: float, among: Sequence[str] | None = None
) -> list[Trouble]:
    """The same for the same chance; only of the kinds `among` those named, if any are."""
    allowed = sorted(KINDS if among is None else among)
    kinds = random.sample(allowed, min(len(allowed), random.randint(1, KINDS_PER_RUN_MAX)))
    if "bit-flip" in kinds:
        # A copy that decays while others are down may be the last one: that nobody survives.
        kinds = [kind for kind in kinds if not KINDS[kind].ends_processes]
    haste = random.choice((0.5, 1.0, 2.0))
    troubles = []
    at_s = random.expovariate(1 / PAUSE_S_MEAN)
    while at_s < seconds:
        kind = KINDS[random.choice(kinds)]
        troubles.append(
            Trouble(
                at_s,
                kind.name,
                tuple(random.sample(nodes, kind.hits(random, len(nodes)))),
                random.choice(DURATIONS_S),
                random.choice(kind.amounts),
            )
        )
        at_s += random.expovariate(haste / PAUSE_S_MEAN)
    return troubles


class Calm:
    """Since when which nodes, and which links between two, have had no trouble."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._troubles: Counter[frozenset[int]] = Counter()
        self._over_s: dict[frozenset[int], float] = {}

    def disturb(self, places: Iterable[frozenset[int]]) -> None:
        self._troubles.update(places)

    def settle(self, places: Iterable[frozenset[int]]) -> None:
        for place in places:
            self._troubles[place] -= 1
            self._over_s[place] = self._now_s()

    def since_s(self, one: int, other: int) -> float:
        """From when on both, and what is between them, were well; in the future if they are not."""
        places = [frozenset((one,)), frozenset((other,)), frozenset((one, other))]
        if any(self._troubles[place] for place in places):
            return self._now_s() + 1.0
        return max(self._over_s.get(place, 0.0) for place in places)


class Troubles:
    """Carries out a plan, and keeps processes alive as whoever supervises them would."""

    def __init__(
        self, world: World, random: Random, calm: Calm, look: Callable[[Node], None]
    ) -> None:
        self._world = world
        self._calm = calm
        self._random = random
        # Told of a node that is about to lose its process.
        self._look = look
        # Nodes that are to stay down for now, and those that wait for their next start.
        self._down: dict[int, int] = {}
        self._links: list[Callable[[], None]] = []
        # The node whose disk decays, if one does.
        self._decaying: int | None = None
        self.carried_out = 0

    async def run(self, troubles: Sequence[Trouble]) -> None:
        """Returns when the last one has begun and all are over."""
        began_s = self._world.now_s
        supervising = asyncio.ensure_future(self._supervise())
        under_way = []
        try:
            for trouble in troubles:
                await asyncio.sleep(max(0.0, began_s + trouble.at_s - self._world.now_s))
                under_way.append(asyncio.ensure_future(self._carry_out(trouble)))
            if under_way:
                await asyncio.gather(*under_way)
        finally:
            supervising.cancel()

    async def heal(self) -> None:
        """Everything is as it should be, and every node has a process that starts or runs."""
        world = self._world
        self._links.clear()
        self._down.clear()
        world.network.heal()
        for node in world.nodes.values():
            node.heal_disk()
            node.drift_clock(1.0)
            if node.is_paused:
                node.resume()
            self._restart_if_ended(node)

    async def supervise(self) -> None:
        """As while there was trouble: a process that ends is started again."""
        await self._supervise()

    async def _carry_out(self, trouble: Trouble) -> None:
        self._world.trace("troubles", str(trouble))
        self.carried_out += 1
        places = self._places(trouble)
        self._calm.disturb(places)
        try:
            await KINDS[trouble.kind].carry_out(self, trouble)
        finally:
            self._calm.settle(places)

    def _places(self, trouble: Trouble) -> list[frozenset[int]]:
        if not KINDS[trouble.kind].is_of_links:
            return [frozenset((node,)) for node in trouble.nodes]
        if len(trouble.nodes) > 1:
            return [frozenset(trouble.nodes)]
        (node,) = trouble.nodes
        return [frozenset((node, other)) for other in self._world.nodes if other != node]

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(SUPERVISION_S)
            for node in self._world.nodes.values():
                if node.id not in self._down and not node.is_paused:
                    self._restart_if_ended(node)

    def _restart_if_ended(self, node: Node) -> None:
        broker = node.broker
        given_up = None if broker is None else getattr(broker, "given_up", None)
        if not node.is_ready and given_up is not None and given_up.done():
            self._world.trace(f"node {node.id}", f"gives up: {given_up.result()}")
            self._end(node)
        if not node.is_running:
            node.disk.heal()
            node.start_soon()

    def _end(self, node: Node) -> None:
        self._look(node)
        node.kill()

    # --------------------------------------------------------------------------------- processes

    async def _stay_down(self, nodes: Sequence[Node], seconds: float) -> None:
        for node in nodes:
            self._down[node.id] = self._down.get(node.id, 0) + 1
        await asyncio.sleep(seconds)
        for node in nodes:
            if node.id in self._down:
                self._down[node.id] -= 1
                if not self._down[node.id]:
                    del self._down[node.id]

    def _nodes(self, trouble: Trouble) -> list[Node]:
        return [self._world.nodes[node] for node in trouble.nodes]

    async def kill(self, trouble: Trouble) -> None:
        nodes = [node for node in self._nodes(trouble) if node.is_running]
        for node in nodes:
            self._end(node)
        await self._stay_down(nodes, trouble.for_s)

    async def power_cut(self, trouble: Trouble) -> None:
        nodes = [node for node in self._nodes(trouble) if node.is_running and not node.is_paused]
        for node in nodes:
            self._look(node)
            node.power_cut(int(trouble.amount) if trouble.amount else None)
        await self._stay_down(nodes, trouble.for_s)
        for node in nodes:
            # It may have had nothing to do with its disk all the time.
            if trouble.amount and node.is_running and node.id not in self._down:
                self._look(node)
                node.power_cut()

    async def brown_out(self, trouble: Trouble) -> None:
        """The disks go first: what machines do with theirs hangs, then all of them are dark."""
        nodes = [node for node in self._nodes(trouble) if node.is_running]
        lives = {node: node.incarnation for node in nodes}
        for node in nodes:
            node.hang_disk()
        await asyncio.sleep(trouble.for_s)
        nodes = [n for n in nodes if n.is_running and n.incarnation == lives[n]]
        for node in nodes:
            self._look(node)
            node.power_cut()
        for node in lives:
            node.heal_disk()
        await self._stay_down(nodes, trouble.amount)

    async def stop(self, trouble: Trouble) -> None:
        """Cleanly; one that takes too long is killed."""
        for node in self._nodes(trouble):
            if not node.is_running or node.is_paused or node.id in self._down:
                continue
            incarnation = node.incarnation
            self._down[node.id] = self._down.get(node.id, 0) + 1
            try:
                async with asyncio.timeout(trouble.for_s + 5.0):
                    await node.stop()
            except Exception as error:
                self._world.trace(f"node {node.id}", f"stops badly: {error!r}")
            if node.is_running and node.incarnation == incarnation:
                self._end(node)
            self._down.pop(node.id, None)

    async def pause(self, trouble: Trouble) -> None:
        nodes = [node for node in self._nodes(trouble) if node.is_running and not node.is_paused]
        for node in nodes:
            node.pause()
        await asyncio.sleep(trouble.for_s)
        for node in nodes:
            if node.is_running and node.is_paused:
                node.resume()

    # ----------------------------------------------------------------------------------- network

    async def _links_are(self, change: Callable[[], None], seconds: float) -> None:
        self._links.append(change)
        change()
        await asyncio.sleep(seconds)
        if change in self._links:
            self._links.remove(change)
        self._world.network.heal()
        for other in self._links:
            other()

    async def cut(self, trouble: Trouble) -> None:
        a, b = trouble.nodes
        await self._links_are(lambda: self._world.network.cut(a, b), trouble.for_s)

    async def cut_one_way(self, trouble: Trouble) -> None:
        a, b = trouble.nodes
        await self._links_are(lambda: self._world.network.cut_one_way(a, b), trouble.for_s)

    async def isolate(self, trouble: Trouble) -> None:
        """From the other nodes; half of the time clients still reach it."""
        (node,) = trouble.nodes
        network, others = self._world.network, [n for n in self._world.nodes if n != node]

        def change() -> None:
            if trouble.amount:
                network.isolate(node)
            else:
                for other in others:
                    network.cut(node, other)

        await self._links_are(change, trouble.for_s)

    async def deafen(self, trouble: Trouble) -> None:
        """Nothing of the other nodes reaches it, or nothing of it the others."""
        (node,) = trouble.nodes
        network, others = self._world.network, [n for n in self._world.nodes if n != node]

        def change() -> None:
            for other in others:
                network.cut_one_way(*((node, other) if trouble.amount else (other, node)))

        await self._links_are(change, trouble.for_s)

    async def slow_link(self, trouble: Trouble) -> None:
        a, b = trouble.nodes
        await self._links_are(lambda: self._world.network.slow(a, b, trouble.amount), trouble.for_s)

    async def slow_one_way(self, trouble: Trouble) -> None:
        """One hears the other late, and is heard at once."""
        a, b = trouble.nodes
        await self._links_are(
            lambda: self._world.network.slow_one_way(a, b, trouble.amount), trouble.for_s
        )

    async def lossy_link(self, trouble: Trouble) -> None:
        a, b = trouble.nodes
        await self._links_are(
            lambda: self._world.network.lossy(a, b, trouble.amount), trouble.for_s
        )

    async def reset(self, trouble: Trouble) -> None:
        self._world.network.reset(*trouble.nodes)

    # ------------------------------------------------------------------------------------- disks

    async def failing_syncs(self, trouble: Trouble) -> None:
        """Of some log, or of any: a few fail."""
        (number,) = trouble.nodes
        node = self._world.nodes[number]
        directory = self._some_log(node)
        for _ in range(self._random.randint(1, 3)):
            after = self._random.randrange(4)
            node.disk.fail("sync", errno.ENOSPC, after=after, under=directory)
        await asyncio.sleep(trouble.for_s)

    def _some_log(self, node: Node) -> str:
        """The directory of a log that is in use."""
        found = {path.rpartition("/")[0] for path in node.disk.paths_seen() if ".log" in path}
        return self._random.choice(sorted(found)) if found else ""

    async def dead_disk(self, trouble: Trouble) -> None:
        """Everything fails; the broker gives up, and is started again with another disk."""
        (number,) = trouble.nodes
        node = self._world.nodes[number]
        operation = self._random.choice(("sync", "write"))
        node.disk.fail(operation, errno.EIO, times=10**6)
        await asyncio.sleep(trouble.for_s)
        node.heal_disk()

    async def hanging_disk(self, trouble: Trouble) -> None:
        (number,) = trouble.nodes
        node = self._world.nodes[number]
        node.hang_disk()
        await asyncio.sleep(trouble.for_s)
        node.heal_disk()

    async def slow_disk(self, trouble: Trouble) -> None:
        (number,) = trouble.nodes
        node = self._world.nodes[number]
        node.slow_disk(trouble.amount)
        await asyncio.sleep(trouble.for_s)
        node.heal_disk()

    async def full_disk(self, trouble: Trouble) -> None:
        (number,) = trouble.nodes
        node = self._world.nodes[number]
        node.disk.capacity_bytes = node.disk.used_bytes() + int(trouble.amount)
        await asyncio.sleep(trouble.for_s)
        node.heal_disk()

    async def bit_flip(self, trouble: Trouble) -> None:
        """A minority of the disks decays: one of them, in all of a run, and what all have."""
        self._decaying = self._decaying or trouble.nodes[0]
        node = self._world.nodes[self._decaying]
        whole = [
            f"{DATA_DIR}/{name}/" for name in partitions_in_sync(node) if not name.startswith("__")
        ]
        if whole and node.is_ready:
            node.flip_bit(self._random, self._random.choice(whole))

    # ------------------------------------------------------------------------------------ clocks

    async def clock_step(self, trouble: Trouble) -> None:
        self._world.nodes[trouble.nodes[0]].step_clock(trouble.amount)

    async def clock_drift(self, trouble: Trouble) -> None:
        node = self._world.nodes[trouble.nodes[0]]
        node.drift_clock(trouble.amount)
        await asyncio.sleep(trouble.for_s)
        node.drift_clock(1.0)


def _one(random: Random, nodes: int) -> int:
    return 1


def _two(random: Random, nodes: int) -> int:
    return min(2, nodes)


def _some(random: Random, nodes: int) -> int:
    return random.randint(2, nodes) if nodes > 1 else 1


class Kind(NamedTuple):
    name: str
    hits: Callable[[Random, int], int]
    amounts: Sequence[float]
    carry_out: Callable[[Troubles, Trouble], Coroutine[Any, Any, None]]
    is_of_links: bool = False
    is_of_disks: bool = False
    ends_processes: bool = False


NOW: Final = (0.0,)
OPERATIONS: Final = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0)
EITHER: Final = (0.0, 1.0)
KINDS: Final[dict[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("kill", _one, NOW, Troubles.kill, ends_processes=True),
        Kind("kill-several", _some, NOW, Troubles.kill, ends_processes=True),
        Kind("power-cut", _one, OPERATIONS, Troubles.power_cut, ends_processes=True),
        Kind("power-cut-several", _some, OPERATIONS, Troubles.power_cut, ends_processes=True),
        Kind("brown-out", _some, DARK_S, Troubles.brown_out, ends_processes=True),
        Kind("stop", _one, NOW, Troubles.stop, ends_processes=True),
        Kind("pause", _one, NOW, Troubles.pause),
        Kind("cut", _two, NOW, Troubles.cut, is_of_links=True),
        Kind("cut-one-way", _two, NOW, Troubles.cut_one_way, is_of_links=True),
        Kind("isolate", _one, EITHER, Troubles.isolate, is_of_links=True),
        Kind("deafen", _one, EITHER, Troubles.deafen, is_of_links=True),
        Kind("slow-link", _two, DELAYS_S, Troubles.slow_link, is_of_links=True),
        Kind("slow-one-way", _two, DELAYS_S, Troubles.slow_one_way, is_of_links=True),
        Kind("lossy-link", _two, LOSSES, Troubles.lossy_link, is_of_links=True),
        Kind("reset", _two, NOW, Troubles.reset, is_of_links=True),
        Kind("failing-syncs", _one, NOW, Troubles.failing_syncs, is_of_disks=True),
        Kind("dead-disk", _one, NOW, Troubles.dead_disk, is_of_disks=True, ends_processes=True),
        Kind("hanging-disk", _one, NOW, Troubles.hanging_disk, is_of_disks=True),
        Kind("slow-disk", _one, SLOWNESS, Troubles.slow_disk, is_of_disks=True),
        Kind("full-disk", _one, ROOM_BYTES, Troubles.full_disk, is_of_disks=True),
        Kind("bit-flip", _one, NOW, Troubles.bit_flip, is_of_disks=True),
        Kind("clock-step", _one, CLOCK_STEPS_S, Troubles.clock_step),
        Kind("clock-drift", _one, DRIFTS, Troubles.clock_drift),
    )
}
