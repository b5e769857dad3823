"""Breaks a cluster on purpose, one thing at a time, and counts the seeds until it is found.

    python scripts/cluster_mutants.py                # all; the table of docs/reliability.md
    python scripts/cluster_mutants.py vote           # those whose names contain one of these words
    python scripts/cluster_mutants.py --seeds 1000   # give up after so many

A mutant is found when a run of the simulator (`ottla.testing.sim`) breaks a promise or gets stuck.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

HERE = Path(__file__).resolve().parent.parent
SEEDS_MAX = 100
SECONDS = 25.0
PROCESSES = ("kill", "kill-several", "power-cut", "power-cut-several", "pause", "stop")
NETWORK = ("cut", "cut-one-way", "isolate", "deafen", "slow-link", "lossy-link", "reset")
POWER = ("power-cut", "power-cut-several")


class Mutant(NamedTuple):
    what: str
    # The kinds of trouble that are to find it.
    kinds: Sequence[str]
    apply: Callable[[ExitStack], None]
    # Where it takes partitions that move all the time.
    has_moves: bool | None = None


def _both(*changes: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
    def apply(stack: ExitStack) -> None:
        for change in changes:
            change(stack)

    return apply


def _counted_unsynced(wait_durable: Any) -> Any:
    """Whoever waits until a copy is on disk is told at once that it is; not so the metadata's."""

    def mutant(self: Any, waiter: Any, item: Any) -> None:
        if self.name.topic == "__cluster_metadata" or self._log.fenced:
            wait_durable(self, waiter, item)
        else:
            waiter.succeeded(item)

    return mutant


def _hasty_vote(stack: ExitStack) -> None:
    """The vote is answered while the disk is still at it."""
    from ottla.broker.control import metadata_quorum
    from ottla.quorum.decisions import Save

    def mutant(self: Any, decision: Any) -> None:
        self._state = decision.state
        self._unsaved = asyncio.ensure_future(_silent(self._save_state(decision.state)))

    stack.enter_context(patch.dict(metadata_quorum._CARRIED_OUT, {Save: mutant}))


async def _silent(work: Any) -> None:
    try:
        await work
    except Exception:
        return


def _no_pre_vote(stack: ExitStack) -> None:
    """Whoever hears of no leader makes a new epoch at once."""
    from ottla.quorum import elections, quorum

    def mutant(node: Any) -> None:
        if not node.is_voter:
            elections.seek(node)
            return
        node.become_prospective()
        elections.run(node)

    stack.enter_context(patch.object(elections, "stand", mutant))
    for name, table in vars(quorum).items():
        if isinstance(table, dict) and not name.startswith("__"):
            changed = {key: mutant for key, to in table.items() if to is _STAND}
            stack.enter_context(patch.dict(table, changed))


def _cut_by_high_watermark(begin_anew: Any) -> Any:
    def mutant(self: Any, partition: Any) -> None:
        begin_anew(self, partition)
        copy = self._copies[partition.topic_id, partition.index]
        end = partition.high_watermark.offset
        if not copy.is_busy and partition.end_offset > end:
            cutting = self._truncation.truncate_to(partition, partition.last_batch_epoch, end)
            self._work(copy, cutting)

    return mutant


def _elected_anybody(elected: Any) -> Any:
    def mutant(partition: Any, standing: Any, election: Any, isr: Any, eligible: Any) -> Any:
        found = elected(partition, standing, election, isr, eligible)
        if found[0] >= 0:
            return found
        return elected(partition, standing, election, partition.replicas, ())

    return mutant


def _forgotten_producers(begin_leading: Any) -> Any:
    from ottla.log.producer_state import ProducerState

    def mutant(self: Any, epoch: Any) -> None:
        begin_leading(self, epoch)
        self._log._producers = ProducerState()

    return mutant


def _stale_taken(checked: Any) -> Any:
    """Whoever led once is believed; one who leads now and knows too little, as well."""
    from ottla.errors import FencedLeaderEpoch, InvalidUpdateVersion

    def mutant(image: Any, node_id: Any, topic: Any, wanted: Any) -> Any:
        try:
            return checked(image, node_id, topic, wanted)
        except (FencedLeaderEpoch, InvalidUpdateVersion):
            return topic.partitions[wanted.partition_index]

    return mutant


def _old_fetch_counted(_: Any) -> Any:
    def mutant(self: Any, partition: Any, asked: Any, now_ms: int) -> None:
        partition.fetched_by(self._replica, self._broker_epoch, asked.fetch_offset, now_ms)

    return mutant


def _deposed_acknowledges(change: Any) -> Any:
    """Before it loses its role, or its lease, it answers whoever waits."""

    def mutant(self: Any, *arguments: Any) -> None:
        if self.is_leader and not self.name.topic.startswith("__"):
            for _, waiter, item in self.waiters.commits:
                waiter.succeeded(item)
            self.waiters.commits.clear()
        change(self, *arguments)

    return mutant


def _without_a_record(records: Any) -> Any:
    def mutant(self: Any) -> Any:
        is_left_out = False
        for record in records(self):
            if type(record).__name__ == "ConfigRecord" and not is_left_out:
                is_left_out = True
                continue
            yield record

    return mutant


def _arrived_at_once(_: Any) -> Any:
    """As soon as one of those who are to stay is in sync."""
    from ottla.cluster.image import NOT_MOVING

    def mutant(self: Any, isr: Any) -> Any:
        if self.moving == NOT_MOVING or not set(self.target) & set(isr):
            return None
        return type(self)(self.target)

    return mutant


def _named(self: Any, replicas: Any) -> bool:
    return True


def _never_lifted(begin: Any) -> Any:
    """The lowest rate that was ever set stays."""
    from ottla.config.setting import LONG_MAX

    def mutant(self: Any, clock: Any, rate: Callable[[], int]) -> None:
        lowest = [LONG_MAX]

        def lowest_rate() -> int:
            lowest[0] = min(lowest[0], rate())
            return lowest[0]

        begin(self, clock, lowest_rate)

    return mutant


def mutants() -> tuple[Mutant, ...]:
    from mutants import replaced

    fetcher = "ottla.broker.replication.fetcher"
    replica = "ottla.broker.storage.partition_replica:PartitionReplica"
    return (
        Mutant(
            "an unsynced fetch counted",
            (*POWER, "brown-out"),
            _both(
                replaced(f"{replica}.wait_durable", _counted_unsynced),
                replaced(
                    f"{replica}.is_all_durable",
                    lambda _: property(lambda self: not self._log.fenced),
                ),
            ),
        ),
        Mutant("a vote before its sync", ("brown-out", "kill", "isolate", "cut"), _hasty_vote),
        Mutant("no pre-vote", NETWORK, _no_pre_vote),
        Mutant(
            "truncation by high watermark",
            PROCESSES,
            replaced(f"{fetcher}:Fetcher.begin_anew", _cut_by_high_watermark),
        ),
        Mutant(
            "election outside the ISR",
            (*PROCESSES, *NETWORK),
            replaced("ottla.cluster.elections:_elected", _elected_anybody),
        ),
        Mutant(
            "producer state forgotten at failover",
            PROCESSES,
            replaced(f"{replica}._begin_leading", _forgotten_producers),
        ),
        Mutant(
            "AlterPartition with a stale epoch accepted",
            ("isolate", "deafen", "cut-one-way", "slow-one-way", "pause"),
            _both(
                replaced("ottla.cluster.in_sync:_checked", _stale_taken),
                replaced("ottla.cluster.in_sync:_check_eligible", lambda _: lambda *_: None),
            ),
        ),
        Mutant(
            "the high watermark moved by a fetch of an old epoch",
            ("slow-one-way", "slow-link", "failing-syncs", "stop"),
            replaced(
                "ottla.broker.handlers.replica_fetch:ReplicaFetch._count_progress",
                _old_fetch_counted,
            ),
        ),
        Mutant(
            "a fenced broker that still acknowledges",
            NETWORK,
            _both(
                replaced(f"{replica}.suspend", _deposed_acknowledges),
                replaced(f"{replica}._change_role", _deposed_acknowledges),
            ),
        ),
        Mutant(
            "a snapshot that lacks a record",
            PROCESSES,
            replaced("ottla.cluster.snapshot:ImageCopy.records", _without_a_record),
        ),
        Mutant(
            "a move that completes before its target is in sync",
            (*PROCESSES, *NETWORK),
            replaced("ottla.cluster.moves:Route.arrived", _arrived_at_once),
            has_moves=True,
        ),
        Mutant(
            "a throttle that is never lifted",
            (*PROCESSES, *NETWORK),
            _both(
                replaced("ottla.broker.replication.throttles:ByteRate.__init__", _never_lifted),
                replaced("ottla.broker.storage.partition:Partition._is_named", lambda _: _named),
            ),
            has_moves=True,
        ),
    )


def seeds_until_found(mutant: Mutant, first: int, seeds_max: int) -> tuple[int | None, str]:
    """A seed that fails without the mutant as well has not found it."""
    for seed in range(first, first + seeds_max):
        with ExitStack() as stack:
            mutant.apply(stack)
            failure = _run(seed, mutant).failure
        if failure is None:
            continue
        sound = _run(seed, mutant).failure
        if sound is None:
            return seed - first + 1, failure
        print(f"  seed {seed} fails without any mutant: {sound}", file=sys.stderr, flush=True)
    return None, ""


def _run(seed: int, mutant: Mutant) -> Any:
    from ottla.testing.sim.run import run_seed

    return run_seed(seed, kinds=mutant.kinds, seconds=SECONDS, has_moves=mutant.has_moves)


def report(words: Sequence[str], first: int, seeds_max: int) -> int:
    print("| what was broken | found after | as |\n|---|---|---|", flush=True)
    missed = 0
    for mutant in mutants():
        if words and not any(word in mutant.what for word in words):
            continue
        began_s = time.process_time()
        count, failure = seeds_until_found(mutant, first, seeds_max)
        missed += count is None
        after = f"not in {seeds_max}" if count is None else f"{count} seed{'s' * (count > 1)}"
        said = re.sub(r"\s+", " ", failure).replace("|", "/")[:140]
        print(f"| {mutant.what} | {after} | {said} |", flush=True)
        print(f"  {time.process_time() - began_s:.0f} s of CPU", file=sys.stderr, flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mutants whose names contain one of them")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="give up after so many")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    return report(options.words, options.seed, options.seeds)


if __name__ == "__main__":
    sys.path[:0] = [str(HERE / "src"), str(HERE / "scripts")]
    from ottla.quorum.elections import stand as _STAND  # noqa: N812

    sys.exit(main())
