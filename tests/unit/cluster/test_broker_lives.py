"""Random lives of brokers: whatever happens, and whoever says what, these things hold.

Beside the controller stands a world of brokers that believe what they last heard: their processes
die and come back, and speak of old epochs. Each history follows from a seed.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ottla.cluster import sweep
from ottla.cluster.framing import decode_record, encode_record
from ottla.cluster.image import MetadataImage
from ottla.cluster.snapshot import copy_of
from ottla.errors import ErrorCode, OttlaError
from ottla.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from unit.cluster.fleet import PARKED, SESSION_MS, Fleet

NODES = (1, 2, 3, 4)
TOPICS = ("a", "b", "c", "__consumer_offsets")
SEEDS, STEPS = 100, 120


class World:
    """A fleet under a random history, and what must be true of it after each step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.has_eligible = self.random.random() < 0.5
        self.fleet = Fleet(1, eligible=self.has_eligible)
        self.told: list[str] = []
        # What each process knows of itself: the epoch under which it was registered.
        self.epochs: dict[int, int] = {1: self.fleet.image.brokers[1].epoch}
        self.highest_epoch = max(self.epochs.values())
        # Those that former controllers have counted, and those that were there a move ago.
        self.unclean = self.unclean_seen = 0
        # A replica of the image: from the log, and now and then from a snapshot.
        self.folded, self.folded_to = MetadataImage(), 0
        self.ids: set[int] = set()
        self.waiting: dict[int, object] = {}
        # Whose last stop may not have been clean.
        self.unproven: set[int] = set()
        self.seen = Counter[str]()

    def run(self) -> None:
        moves = [
            (self.register, 3),
            (self.beat, 10),
            (self.time_passes, 4),
            (self.shut_down, 2),
            (self.alter_as_it_is, 8),
            (self.alter_with_something_wrong, 8),
            (self.create, 2),
            (self.delete, 0.3),
            (self.unregister, 0.3),
            (self.elect, 1),
            (self.fail_over, 1),
            (self.set_unclean, 0.3),
            (self.take_ids, 0.5),
            (self.one_step, 3),
            (self.everything_due, 5),
        ]
        for _ in range(STEPS):
            [move] = self.random.choices(
                [move for move, _ in moves], [weight for _, weight in moves]
            )
            self.told.append(move.__name__)
            before = self.states()
            move()
            self.check(before)
        self.comes_to_rest()

    # ------------------------------------------------------------------------- what happens

    def node(self) -> int:
        return self.random.choice(NODES)

    def register(self) -> None:
        node_id = self.node()
        if self.random.random() < 0.8:
            self.fleet.new_process(node_id)
        known = self.fleet.image.brokers.get(node_id)
        clean = known is not None and self.random.random() < 0.5
        ticket = object()
        request = self.fleet.registration(
            node_id, previous_broker_epoch=known.epoch if clean and known else -1
        )
        try:
            decision = self.fleet.controller.broker_registration(request, self.fleet.NOW, ticket)
        except OttlaError as error:
            self.seen[type(error).__name__] += 1
            return
        self.fleet._take(decision)
        self.waiting[node_id] = ticket
        self.unproven.discard(node_id)
        if not clean and (known is None or known.incarnation_id != request.incarnation_id):
            self.unproven.add(node_id)
        self.hear_of_registrations()

    def hear_of_registrations(self) -> None:
        for node_id, ticket in list(self.waiting.items()):
            reply = self.fleet.replies.pop(ticket, None)
            if reply is None:
                continue
            del self.waiting[node_id]
            known = self.fleet.image.brokers[node_id]
            assert reply.broker_epoch == known.epoch
            self.epochs[node_id] = reply.broker_epoch
            if node_id in self.unproven:
                for partition in self.states().values():
                    safe = {*partition.isr, *partition.recovery.eligible}
                    assert node_id not in safe or safe == {node_id}

    def beat(self, **wants: bool) -> None:
        node_id = self.node()
        if self.random.random() < 0.1:
            wants["want_fence"] = True
        behind = self.random.choice((0, 0, 0, 1, 5))
        try:
            reply = self.fleet.beat(
                node_id,
                read_to=len(self.fleet.log) - 1 - behind,
                broker_epoch=self.epochs.get(node_id, -1),
                **wants,
            )
        except OttlaError as error:
            self.seen[type(error).__name__] += 1
            return
        broker = self.fleet.image.brokers[node_id]
        assert broker.epoch == self.epochs[node_id]
        assert reply.is_fenced == broker.is_fenced
        if reply.should_shut_down:
            self.seen["let go"] += 1
            if self.fleet.controller.next_deadline_ms() != 0:
                assert node_id not in {p.leader for p in self.states().values()}

    def shut_down(self) -> None:
        self.beat(want_shut_down=True)

    def time_passes(self) -> None:
        self.fleet.pass_ms(self.random.choice((500, SESSION_MS // 2, SESSION_MS)))

    def one_step(self) -> None:
        self.fleet.step()

    def everything_due(self) -> None:
        self.fleet.settle()

    def a_partition(self):
        topics = list(self.fleet.image.topics_by_name.values())
        if not topics:
            return None
        topic = self.random.choice(topics)
        return topic.name, self.random.choice(list(topic.partitions))

    def alter_as_it_is(self) -> None:
        self.alter(self.random.random() < 0.1)

    def alter_with_something_wrong(self) -> None:
        self.alter(True)

    def alter(self, is_wrong: bool) -> None:
        found = self.a_partition()
        if found is None:
            return
        topic, index = found
        partition = self.fleet.partition(topic, index)
        if partition.leader == -1:
            return
        others = [node for node in partition.replicas if node != partition.leader]
        chosen = self.random.sample(others, self.random.randint(0, len(others)))
        fields: dict[str, object] = {}
        brokers = self.fleet.image.brokers
        wrong = self.random.choice(("partition", "leader", "member", "node")) if is_wrong else ""
        if wrong == "partition":
            fields["partition_epoch"] = partition.partition_epoch + self.random.choice((-1, 1))
        elif wrong == "leader":
            fields["leader_epoch"] = partition.leader_epoch + self.random.choice((-1, 1))
        elif wrong == "member" and chosen and chosen[0] in brokers:
            fields["epochs"] = {chosen[0]: brokers[chosen[0]].epoch - 1}
        elif wrong == "node" and others:
            fields["by"] = others[0]
        else:
            wrong = ""
        try:
            answer = self.fleet.new_isr(
                partition.leader, *chosen, topic=topic, index=index, **fields
            )
        except OttlaError as error:
            self.seen[type(error).__name__] += 1
            return
        self.seen[ErrorCode(answer.error_code).name] += 1
        if answer.error_code == ErrorCode.NONE:
            assert not wrong, f"{wrong} was wrong and it was accepted"
            for member in answer.isr:
                assert brokers[member].is_active
                self.seen["in sync"] += 1

    def create(self) -> None:
        name = self.random.choice(TOPICS)
        unclean = {"unclean.leader.election.enable": "true"} if name == "c" else {}
        min_isr = {"min.insync.replicas": "2"} if name == "b" else {}
        result = self.fleet.create(
            name,
            partitions=self.random.randint(1, 4),
            factor=self.random.randint(1, 4),
            configs=unclean | min_isr,
        )
        self.seen[f"create {ErrorCode(result.error_code).name}"] += 1

    def delete(self) -> None:
        self.fleet.delete(self.random.choice(TOPICS))

    def unregister(self) -> None:
        try:
            self.fleet.unregister(self.node())
        except OttlaError:
            return

    def elect(self) -> None:
        self.fleet.elect(self.random.randint(0, 1), None)

    def set_unclean(self) -> None:
        value = self.random.choice(("true", "false"))
        self.fleet.alter(2, "a", ("unclean.leader.election.enable", 0, value))

    def take_ids(self) -> None:
        node_id = self.node()
        request = AllocateProducerIdsRequest(node_id, self.epochs.get(node_id, -1))
        try:
            block = self.fleet.ask("allocate_producer_ids", request)
        except OttlaError:
            return
        assert block.producer_id_start not in self.ids
        self.ids.add(block.producer_id_start)

    def fail_over(self) -> None:
        self.unclean += self.fleet.controller.unclean_elections
        self.fleet.controller.abandon()
        self.waiting.clear()
        self.fleet.lead()

    # ---------------------------------------------------------------------- what must hold

    def states(self):
        return {
            (topic.id, index): partition
            for topic in self.fleet.image.topics_by_id.values()
            for index, partition in topic.partitions.items()
        }

    def check(self, before) -> None:
        self.hear_of_registrations()
        image = self.fleet.image
        for value in self.fleet.log[self.folded_to :]:
            self.folded.apply(decode_record(value))
        self.folded_to = len(self.fleet.log)
        assert self.folded == image == self.fleet.cache.image
        if self.random.random() < 0.1:
            self.folded = MetadataImage()
            for record in copy_of(image).records():
                self.folded.apply(decode_record(encode_record(record)))
            assert self.folded == image
        assert image.last_registration[1] >= self.highest_epoch
        self.highest_epoch = image.last_registration[1]
        may_be_unclean, self.unclean_seen = self.counted() - self.unclean_seen, self.counted()
        for place, partition in self.states().items():
            self.check_partition(partition)
            if place in before:
                may_be_unclean -= self.check_change(before[place], partition)
        assert may_be_unclean >= 0, "an unclean election was not counted"
        if self.fleet.controller.next_deadline_ms() != 0:
            self.check_rest()

    def counted(self) -> int:
        return self.unclean + self.fleet.controller.unclean_elections

    def check_partition(self, partition) -> None:
        replicas, isr = set(partition.replicas), set(partition.isr)
        eligible = set(partition.recovery.eligible)
        assert isr <= replicas
        assert eligible <= replicas - isr
        assert isr or (self.has_eligible and partition.leader == -1 and eligible)
        assert partition.leader == -1 or partition.leader in isr
        assert len(partition.directories) == len(partition.replicas)
        assert self.has_eligible or not (eligible or partition.recovery.last_known)

    def check_change(self, before, after) -> int:
        """One if a leader was elected that may lack something."""
        if before == after:
            return 0
        assert after.partition_epoch > before.partition_epoch
        assert after.leader_epoch >= before.leader_epoch
        if after.leader == before.leader:
            return 0
        assert after.leader_epoch > before.leader_epoch
        complete = {*before.isr, *before.recovery.eligible, -1}
        return int(after.leader not in complete)

    def check_rest(self) -> None:
        """With nothing left to do, only the living lead, and whoever can lead does."""
        brokers = self.fleet.image.brokers
        active = {broker.id for broker in brokers.values() if broker.is_active}
        for partition in self.states().values():
            if partition.leader == -1:
                assert active.isdisjoint({*partition.isr, *partition.recovery.eligible})
            else:
                assert set(partition.isr) <= active

    def comes_to_rest(self) -> None:
        """Everybody comes back, and every partition has a leader."""
        for node_id in NODES:
            if node_id not in self.fleet.image.brokers or not self.is_living(node_id):
                self.fleet.pass_ms(SESSION_MS)
        self.fleet.pass_ms(SESSION_MS)
        for node_id in NODES:
            self.fleet.come_back(node_id)
        self.fleet.settle()
        self.check_rest()
        assert all(partition.leader != -1 for partition in self.states().values())
        assert PARKED not in self.fleet.replies.values()

    def is_living(self, node_id: int) -> bool:
        return self.fleet.image.brokers[node_id].is_active


@pytest.mark.seconds(120)
def test_any_lives_of_brokers_keep_the_metadata_right(monkeypatch):
    monkeypatch.setattr(sweep, "RECORDS_PER_STEP", 2)
    seen = Counter()
    for seed in range(SEEDS):
        world = World(seed)
        try:
            world.run()
        except AssertionError as error:
            story = " ".join(world.told[-12:])
            raise AssertionError(f"seed {seed}, after {len(world.told)} moves: {story}") from error
        seen += world.seen
        seen["unclean"] += world.counted()
    common = ("NONE", "INVALID_UPDATE_VERSION", "FENCED_LEADER_EPOCH", "NOT_CONTROLLER")
    rare = ("INELIGIBLE_REPLICA", "DuplicateBrokerRegistration", "StaleBrokerEpoch", "let go")
    for what in (*common, *rare, "unclean", "create NONE"):
        assert seen[what] > 10, f"{what} happened {seen[what]} times: {seen}"
