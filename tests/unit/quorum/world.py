"""Nodes of the real state machine in a world of chance: everything follows from the seed."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random as Chance
from typing import Any

from ottla.quorum import events as on
from ottla.quorum.roles import Role
from ottla.quorum.voters import ReplicaKey, Voter, VoterSet
from unit.quorum.checkers import Broken, History, check_matching
from unit.quorum.machine import Machine, Reply

FAULTS_MS = 2000
RECOVERY_MS_MAX = 4000
REMEMBERED = 400


class World:
    def __init__(self, seed: int, voters: int = 0, spares: int = -1) -> None:
        self.chance = Chance(seed)
        self.now_ms = 0
        self.history = History()
        self.delay_ms_max = self.chance.choice((3, 3, 15))
        self.loss = self.duplication = self.lateness = 0.0
        self.cuts: set[tuple[int, int]] = set()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._directories = 0
        count = voters or self.chance.choice((3, 3, 3, 5))
        spares = self.chance.choice((0, 2)) if spares < 0 else spares
        keys = [ReplicaKey(n, self.new_directory()) for n in range(1, count + spares + 1)]  # type: ignore[arg-type]
        first = VoterSet(Voter(key) for key in keys[:count])
        self.nodes = {key.id: Machine(self, key.id, key.directory_id, first) for key in keys}
        self.values = 0
        self.on_lead: Callable[[Machine], None] = lambda leader: None
        self.entries_per_fetch = self.chance.choice((1, 4))
        self.wiped: set[ReplicaKey] = set()
        # Requests of the past, each of which may come once more, also to a node's next life.
        self.sent: deque[tuple[Any, Callable[[], None]]] = deque(maxlen=REMEMBERED)

    def new_directory(self) -> bytes:
        self._directories += 1
        return self._directories.to_bytes(2, "big") + bytes(14)

    # Time

    def at(self, delay_ms: int, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._number, call))

    def run(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._queue)
            call()
        self.now_ms = end_ms

    def run_until(self, is_so: Callable[[], bool], longest_ms: int) -> bool:
        end_ms = self.now_ms + longest_ms
        while not is_so() and self.now_ms < end_ms:
            self.run(25)
        return is_so()

    # Network

    def send(self, sender: Machine, peer_id: int, event: Any, then: Reply) -> None:
        """A request, and its answer: each is lost, late, or there twice."""
        peer, life = self.nodes[peer_id], sender.life

        def answer(content: Any, cargo: object) -> None:
            def arrive() -> None:
                if sender.life == life:
                    then(content, cargo)

            self._carry(peer_id, sender.id, arrive)

        def refuse() -> None:
            if sender.life == life:
                sender.hand_in(on.RequestFailed(peer.id))

        def arrive() -> None:
            if peer.quorum is None:
                self._carry(peer_id, sender.id, refuse)
            else:
                peer.hand_in(event, answer)

        self._carry(sender.id, peer_id, arrive)
        self.sent.append((event, arrive))

    def _carry(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        copies = 2 if self.chance.random() < self.duplication else 1
        for _ in range(copies):
            if (source, target) in self.cuts or self.chance.random() < self.loss:
                continue
            is_late = self.chance.random() < self.lateness
            self.at(
                self.chance.randint(10, 150)
                if is_late
                else self.chance.randint(1, self.delay_ms_max),
                arrive,
            )

    # Life

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    @property
    def leader(self) -> Machine | None:
        """Of the highest epoch, if there is one."""
        leaders = [node for node in self.nodes.values() if node.leads]
        return max(leaders, key=lambda node: node.quorum.epoch, default=None)  # type: ignore[union-attr]

    def write(self) -> None:
        """To everybody who thinks that it leads."""
        for node in self.nodes.values():
            if node.leads:
                node.write(self.new_value())

    def new_value(self) -> int:
        self.values += 1
        return self.values

    def isolate(self, node_id: int) -> None:
        for other in self.nodes:
            self.cuts |= {(node_id, other), (other, node_id)}

    def is_settled(self) -> bool:
        """One leader that all follow, with everything committed everywhere."""
        leader = self.leader
        if leader is None or leader.quorum is None or leader.committed < len(leader.log):
            return False
        return all(
            node.quorum is not None
            and (node is leader or node.quorum.role is Role.FOLLOWER)
            and node.quorum.epoch == leader.quorum.epoch
            and node.committed == leader.committed
            for node in self.nodes.values()
        )


class Trouble:
    """Faults, writes and changes of voters until the time is up; each seed has a mix of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance
        self.is_over = False
        self.tickets = 0
        world.loss = self.chance.choice((0.0, 0.0, 0.02, 0.1))
        world.duplication = self.chance.choice((0.0, 0.0, 0.1))
        world.lateness = self.chance.choice((0.0, 0.02, 0.1))
        self.acts = (
            self._crash,
            self._fall_of_a_leader,
            self._crash_while_saving,
            self._cut_the_power,
            self._cut,
            self._isolate,
            self._part,
            self._change_voters,
            self._wipe,
            self._restart,
            self._heal,
        )
        self.weights = [self.chance.random() ** 3 for _ in self.acts[:-2]] + [0.8, 0.8]
        self.pause_ms = self.chance.choice((10, 30, 80))
        self.mortality = self.chance.choice((0.0, 0.3, 0.7))
        world.on_lead = self._rise_of_a_leader

    def go_on(self) -> None:
        if not self.is_over:
            self.chance.choices(self.acts, self.weights)[0]()
            self.world.at(self.chance.randint(1, 2 * self.pause_ms), self.go_on)

    def write(self) -> None:
        if not self.is_over:
            self.world.write()
            self.world.at(self.chance.randint(5, 50), self.write)

    def _any(self) -> Machine:
        leader = self.world.leader
        if leader is not None and self.chance.random() < 0.4:
            return leader
        return self.chance.choice(list(self.world.nodes.values()))

    def _crash(self) -> None:
        node = self._any()
        if node.quorum is not None:
            node.crash()

    def _fall_of_a_leader(self) -> None:
        """It has just written, and now and then reaches one other node only."""
        leader = self.world.leader
        if leader is None:
            return
        if self.chance.random() < 0.5:
            self.world.isolate(leader.id)
            friend = self.chance.choice(list(self.world.nodes))
            self.world.cuts -= {(leader.id, friend), (friend, leader.id)}
        leader.write(self.world.new_value())
        self._soon_over(leader)

    def _soon_over(self, leader: Machine) -> None:
        leader.later(self.chance.randint(1, 60), lambda: None if self.is_over else leader.crash())

    def _rise_of_a_leader(self, leader: Machine) -> None:
        if self.chance.random() < self.mortality:
            self._soon_over(leader)

    def _crash_while_saving(self) -> None:
        for node in self.world.nodes.values():
            if node.is_busy:
                node.crash()

    def _cut_the_power(self) -> None:
        for node in self.world.nodes.values():
            if node.quorum is not None:
                node.crash()

    def _restart(self) -> None:
        for node in self.world.nodes.values():
            if node.quorum is None and self.chance.random() < 0.5:
                node.start()

    def _cut(self) -> None:
        ids = list(self.world.nodes)
        self.world.cuts.add((self.chance.choice(ids), self.chance.choice(ids)))

    def _isolate(self) -> None:
        self.world.isolate(self._any().id)

    def _part(self) -> None:
        """Two groups that do not hear each other."""
        ids = list(self.world.nodes)
        side = set(self.chance.sample(ids, len(ids) // 2))
        self.world.cuts |= {(a, b) for a in ids for b in ids if (a in side) != (b in side)}

    def _heal(self) -> None:
        self.world.cuts.clear()

    def _wipe(self) -> None:
        """At most one disk: a minority of any set of voters that there can be."""
        node = self._any()
        if not self.world.wiped:
            self.world.wiped.add(node.key)
            node.wipe(self.world.new_directory())

    def _change_voters(self) -> None:
        """A replica that no longer is comes out, another one in; never fewer than three live."""
        for leader in [node for node in self.world.nodes.values() if node.leads] * 2:
            if leader.quorum is None:
                continue
            self.tickets += 1
            voters = leader.quorum.voters
            gone = [key for key in voters.keys if key in self.world.wiped]
            outside = [n for n in self.world.nodes.values() if voters.key_of(n.key) is None]
            outside = [node for node in outside if voters.get(node.id) is None]
            if gone and self.chance.random() < 0.5:
                event: on.Event = on.RemoveVoterAsked(self.tickets, gone[0])
            elif len(voters) - len(gone) > 3 and self.chance.random() < 0.5:
                event = on.RemoveVoterAsked(self.tickets, self.chance.choice(voters.keys))
            elif outside:
                voter = Voter(self.chance.choice(outside).key)
                event = on.AddVoterAsked(self.tickets, voter, 100)
            else:
                continue
            leader.hand_in(event)


class ShortReigns(Trouble):
    """Each leader falls soon after its rise, and everybody is back in no time, or not quite."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.mortality = 1.0
        world.entries_per_fetch, world.delay_ms_max = 1, 15
        self.acts = (self._restart_one, self._crash, self._cut_the_power)
        self.weights = [1.0, 0.1, 0.1]
        self.pause_ms = 30

    def _restart_one(self) -> None:
        down = [node for node in self.world.nodes.values() if node.quorum is None]
        if down:
            self.chance.choice(down).start()


class LateWords(Trouble):
    """What was said long ago is heard once more, by another epoch and in another life."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.acts = (*self.acts, self._repeat_a_word_of_a_leader, self._repeat_the_past)
        self.weights += [1.0, 1.0]

    def _repeat_a_word_of_a_leader(self) -> None:
        """A former one's, if need be: its epoch begins once more, or ends."""
        words = (on.EpochBegun, on.EpochEnded)
        self._repeat([sent for sent in self.world.sent if isinstance(sent[0], words)])

    def _repeat_the_past(self) -> None:
        self._repeat(list(self.world.sent))

    def _repeat(self, sent: list[tuple[Any, Callable[[], None]]]) -> None:
        for _ in range(3 if sent else 0):
            self.world.at(self.chance.randint(1, 20), self.chance.choice(sent)[1])


def rejoin(seed: int) -> World:
    """A follower that was cut off comes back to a leader that all others follow."""
    world = World(seed, voters=3, spares=0)
    world.start()
    if not world.run_until(world.is_settled, RECOVERY_MS_MAX):
        raise Broken("no leader, and nothing was ever wrong")
    leader = world.leader
    assert leader is not None
    assert leader.quorum is not None
    epoch = leader.quorum.epoch
    world.isolate(world.chance.choice([id_ for id_ in world.nodes if id_ != leader.id]))
    for _ in range(world.chance.randint(3, 12)):
        world.write()
        world.run(50)
    world.cuts.clear()
    if not world.run_until(world.is_settled, RECOVERY_MS_MAX):
        raise Broken("the node that was away does not find back")
    if (world.leader, leader.quorum.epoch) != (leader, epoch):
        raise Broken("the node that was away has deposed a healthy leader")
    return world


def live(seed: int) -> World:
    """One life with faults, and what must come after them."""
    has_short_reigns = seed % 2 == 1
    world = World(seed, *((3, 0) if has_short_reigns else ()))
    return _live(world, ShortReigns if has_short_reigns else Trouble)


def hear_late_words(seed: int) -> World:
    """The same, with requests of the past."""
    world = World(seed)
    return _live(world, LateWords)


def _live(world: World, kind: type[Trouble]) -> World:
    world.start()
    trouble = kind(world)
    trouble.go_on()
    trouble.write()
    world.run(FAULTS_MS)
    check_matching([node.log for node in world.nodes.values()])
    trouble.is_over = True
    world.loss = world.duplication = world.lateness = 0.0
    world.cuts.clear()
    for node in world.nodes.values():
        if node.quorum is None:
            node.start()
    if not world.run_until(lambda: world.leader is not None, RECOVERY_MS_MAX):
        raise Broken("no leader, and nothing is wrong any more")
    world.run(200)
    world.write()
    if not world.run_until(world.is_settled, RECOVERY_MS_MAX):
        raise Broken("the nodes do not come together again")
    check_matching([node.log for node in world.nodes.values()])
    for node in world.nodes.values():
        world.history.keeps(node.name, node.log)
    return world
