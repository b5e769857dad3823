"""The table of a write's states says what really happens to batches, whatever befalls the disk."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from random import Random

from ottla.broker.storage import write_states
from ottla.broker.storage.write_states import NEXT, WriteState
from ottla.log.log import SyncTicket
from records_kit import NOW_MS
from unit.broker.test_replicas import OWN, SECOND, Node


def test_the_table_at_the_top_is_the_table_that_is_used() -> None:
    rows = re.findall(r"^\| (\w+) +\|.*\| ([A-Z ()a-z]+) +\|$", write_states.__doc__ or "", re.M)
    written = {
        WriteState[state]: {WriteState[name] for name in following.split() if name.isupper()}
        for state, following in rows
        if state.isupper()
    }
    assert written == {state: set(following) for state, following in NEXT.items()}


def _reachable(state: WriteState) -> set[WriteState]:
    """A step that is seen may be several: a write under write.caching commits at once."""
    found, ahead = {state}, [state]
    while ahead:
        for following in NEXT[ahead.pop()] - found:
            found.add(following)
            ahead.append(following)
    return found


@dataclass
class Batch:
    end_offset: int
    state: WriteState = WriteState.QUEUED


class Walk:
    """One partition, and every batch that it was given."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        is_cached = self.random.random() < 0.3
        self.node = Node(write_caching=str(is_cached).lower())
        self.is_alone = self.random.random() < 0.5
        replicas = (OWN,) if self.is_alone else (OWN, SECOND)
        self.node.lead(replicas=replicas, isr=replicas)
        self.replicas = replicas
        self.epoch = 1
        self.batches: list[Batch] = []
        self.ticket: SyncTicket | None = None

    def step(self) -> None:
        node, partition = self.node, self.node.partition
        moves = [self.append, self.append, self.write, self.begin_sync, self.finish_sync]
        moves += [self.fetch, self.refuse_write, self.fail_sync]
        if partition.is_fenced:
            moves = [self.reopen] if self.ticket is None else [self.finish_sync]
        self.random.choice(moves)()
        assert node.committed <= partition.end_offset
        for each in self.batches:
            if NEXT[each.state]:
                now = partition.state_of(each.end_offset)
                assert now in _reachable(each.state), f"{each.state} became {now}"
                each.state = now

    def append(self) -> None:
        self.batches.append(Batch(self.node.produce(str(len(self.batches)))))

    def write(self) -> None:
        self.node.write()

    def refuse_write(self) -> None:
        self.node.disk.fail("write", errno.ENOSPC)
        self.node.write()
        self.node.disk.heal()

    def begin_sync(self) -> None:
        if self.ticket is None:
            self.ticket = self.node.partition.begin_sync()

    def finish_sync(self) -> None:
        if self.ticket is not None:
            ticket, self.ticket = self.ticket, None
            self.node.partition.finish_sync(ticket)

    def fail_sync(self) -> None:
        if self.ticket is not None and self.random.random() < 0.3:
            ticket, self.ticket = self.ticket, None
            self.node.partition.fail_sync(ticket, OSError(5, "gone"))

    def fetch(self) -> None:
        if not self.is_alone:
            partition = self.node.partition
            at = self.random.randint(self.node.committed, partition._log.written.offset)
            self.node.fetched_by(SECOND, at)

    def reopen(self) -> None:
        partition = self.node.partition
        log = partition.reopened_log(NOW_MS)
        self.epoch += 1
        self.node.flusher.queued.clear()
        partition._is_queued, partition._queued_bytes = False, 0
        self.node.lead(epoch=self.epoch, replicas=self.replicas, isr=self.replicas)
        partition.heal(log, NOW_MS)


def test_batches_go_only_the_ways_of_the_table_and_each_is_gone() -> None:
    seen: set[WriteState] = set()
    for seed in range(60):
        walk = Walk(seed)
        for _ in range(120):
            walk.step()
            seen |= {each.state for each in walk.batches}
    assert seen == set(WriteState)
