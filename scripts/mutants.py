"""Breaks the broker on purpose, one thing at a time, and counts the lives until it is found.

    python scripts/mutants.py                 # every mutant; the table of docs/reliability.md
    python scripts/mutants.py quorum votes    # those whose names contain one of these words
    python scripts/mutants.py --at c97bb8c    # the faults that were mended since, in that commit

A mutant is found when a life of the kind that is to find it (tests/sim) ends in a broken promise.
"""

from __future__ import annotations

import argparse
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

HERE = Path(__file__).resolve().parent.parent
SEEDS_MAX = 60
# What a simulated life needs of ottla.testing, laid over an older commit.
OVERLAY = ("disks.py", "faulty_disk.py", "medium.py", "memory_disk.py")


class Mutant(NamedTuple):
    what: str
    kind: str
    apply: Callable[[ExitStack], None]
    # What the broken promise says, where another fault might break one first.
    says: str = ""


def replaced(target: str, make: Callable[[Any], Any]) -> Callable[[ExitStack], None]:
    """`make` is given what is there, and returns what takes its place."""

    def apply(stack: ExitStack) -> None:
        import importlib

        module_name, _, path = target.partition(":")
        owner: Any = importlib.import_module(module_name)
        *outer, name = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))

    return apply


def _all(*changes: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
    def apply(stack: ExitStack) -> None:
        for change in changes:
            change(stack)

    return apply


def _nothing(_: Any) -> Any:
    return lambda *arguments, **options: None


def _never_written(ending: str) -> Callable[[ExitStack], None]:
    def make(write_file: Any) -> Any:
        def mutant(self: Any, path: str, data: bytes) -> None:
            if not path.endswith(ending):
                write_file(self, path, data)

        return mutant

    return replaced("ottla.testing.memory_disk:MemoryDisk.write_file", make)


def _unsynced_flush(_: Any) -> Any:
    def mutant(self: Any, disk: Any, tickets: Any) -> None:
        for partition, _ticket in tickets:
            partition.make_directory_durable(True)

    return mutant


def _hasty(topic: str) -> Callable[[ExitStack], None]:
    """The runtime of this log answers when its records are appended."""

    def make(commit: Any) -> Any:
        def mutant(self: Any, decision: Any, now: Any) -> None:
            if self.partition.name.topic != topic or not decision.records:
                commit(self, decision, now)
                return
            self._append(decision.records, now)
            self._release(self.partition.end_offset, decision.replies, decision.records)

        return mutant

    return replaced("ottla.broker.control.runtime:Runtime._commit", make)


def _acknowledged_when_written(wait_committed: Any) -> Any:
    def mutant(self: Any, end_offset: int, waiter: Any, item: Any) -> None:
        if self.name.topic.startswith("__"):
            wait_committed(self, end_offset, waiter, item)
        else:
            self.wait_written(waiter, item)

    return mutant


def _read_when_written(wrote: Any) -> Any:
    def mutant(self: Any, waiters: Any) -> None:
        is_eager, self.is_synced_eagerly = self.is_synced_eagerly, False
        wrote(self, waiters)
        self.is_synced_eagerly = is_eager

    return mutant


def _replaced_unsynced(skip_file: bool) -> Callable[[Any], Any]:
    def make(_: Any) -> Any:
        def mutant(self: Any, path: str, data: bytes) -> None:
            scratch = self.open(path + ".tmp", create=True)
            scratch.truncate(0)
            scratch.write([data], 0)
            if not skip_file:
                scratch.sync()
            scratch.close()
            self.rename(path + ".tmp", path)
            if skip_file:
                self.sync_directory(path.rpartition("/")[0])

        return mutant

    return make


def _same_epochs(_: Any) -> Any:
    def mutant(self: Any, rules: Any, standing: Any) -> Any:
        self._topics.clear()
        return []

    return mutant


def _unwritten_ids(allocate_producer_ids: Any) -> Any:
    from ottla.machine import Decision

    def mutant(self: Any, request: Any, now: Any, ticket: Any) -> Any:
        return Decision(replies=allocate_producer_ids(self, request, now, ticket).replies)

    return mutant


def _no_way_out(_: Any) -> Any:
    from ottla.errors import CannotStart

    def mutant(one: Any, other: Any, name: Any, named_directory: Any) -> Any:
        raise CannotStart(f"{name} is in {one[0].path} and in {other[0].path}")

    return mutant


def _rest_left_out(complete: Any) -> Any:
    def mutant(self: Any, contents: Any, **options: Any) -> None:
        add, self.add = self.add, lambda *arguments: 0
        try:
            complete(self, contents, **options)
        finally:
            self.add = add

    return mutant


def _promoted_unsynced(_: Any) -> Any:
    def mutant(self: Any, path: str, partition: Any) -> None:
        self._disk.rename(path, self.partition_path(partition))

    return mutant


def _copied_unsynced(complete: Any) -> Any:
    def mutant(self: Any, contents: Any, **options: Any) -> None:
        disk = self._disk
        with patch.object(disk, "sync_many", lambda *arguments: False):
            complete(self, contents, **options)

    return mutant


async def _unsaved(self: Any, partition: Any, store: Any) -> None:
    """The directory is not told how to open what comes."""


MOVES, COPY = "ottla.log.directory:DataDirectory", "ottla.log.copying:LogCopy"
DISK, FILE = "ottla.testing.memory_disk:MemoryDisk", "ottla.testing.memory_disk:MemoryFile"
MUTANTS = (
    Mutant(
        "no fdatasync, fsync or syncfs at all",
        "cut",
        _all(
            replaced(f"{FILE}.sync", _nothing),
            replaced(f"{DISK}.sync_directory", _nothing),
            replaced(f"{DISK}.sync_file_system", _nothing),
        ),
    ),
    Mutant(
        "the flushers do not sync",
        "cut",
        replaced("ottla.broker.storage.flusher:SyncJob._sync", _unsynced_flush),
    ),
    Mutant("the metadata log answers before its sync", "cut", _hasty("__cluster_metadata")),
    Mutant("group offsets are answered before their sync", "cut", _hasty("__consumer_offsets")),
    Mutant(
        "acks=all answers when the batch is written",
        "cut",
        replaced(
            "ottla.broker.storage.partition:Partition.wait_committed", _acknowledged_when_written
        ),
    ),
    Mutant(
        "consumers read what is written and not synced",
        "cut",
        replaced("ottla.broker.storage.partition:Partition._wrote", _read_when_written),
    ),
    Mutant("quorum-state is never written (votes)", "cut", _never_written("quorum-state")),
    Mutant(
        "the high-watermark checkpoint is never written",
        "cut",
        _never_written("replication-offset-checkpoint"),
    ),
    Mutant(
        "DeleteRecords answers, and its checkpoint is never written",
        "cut",
        _never_written("log-start-offset-checkpoint"),
    ),
    Mutant(
        "whole files are replaced without syncing their contents",
        "cut",
        replaced(f"{DISK}.write_file", _replaced_unsynced(skip_file=True)),
    ),
    Mutant(
        "whole files are replaced without syncing their names",
        "cut",
        replaced(f"{DISK}.write_file", _replaced_unsynced(skip_file=False)),
    ),
    Mutant(
        "a new partition's directory is not synced",
        "cut",
        replaced("ottla.log.directory:DataDirectory.settle", _nothing),
    ),
    Mutant(
        "a start gives no new leader epochs",
        "cut",
        replaced("ottla.cluster.sweep:Sweep.step", _same_epochs),
    ),
    Mutant(
        "blocks of producer ids are not written down",
        "cut",
        replaced("ottla.cluster.controller:Controller.allocate_producer_ids", _unwritten_ids),
    ),
    Mutant(
        "recovery believes batches whose CRC is wrong",
        "cut",
        replaced("ottla.log.opening.recovery:is_intact", lambda _: lambda *arguments: True),
    ),
    Mutant(
        "two directories of one name keep the broker from starting",
        "cut",
        replaced("ottla.broker.storage.finder:stranger_of", _no_way_out),
    ),
    Mutant(
        "a topic's id whose sync failed is not written again",
        "failed-syncs",
        replaced("ottla.broker.storage.partition_files:Home.doubt", _nothing),
    ),
    Mutant(
        "a copy in another directory takes over before it has everything",
        "moved",
        replaced(f"{COPY}.complete", _rest_left_out),
    ),
    Mutant(
        "a copy in another directory takes over unsynced",
        "moved",
        replaced(f"{COPY}.complete", _copied_unsynced),
    ),
    Mutant(
        "a copy's new name is not synced before the old directory goes",
        "moved",
        replaced(f"{MOVES}.promote", _promoted_unsynced),
    ),
    Mutant(
        "of two directories the one that has moved does not count",
        "moved",
        replaced(f"{MOVES}.has_moved_here", lambda _: lambda *arguments: False),
    ),
    Mutant(
        "a new directory does not know where its log begins",
        "moved",
        replaced("ottla.broker.storage.checkpoints:Checkpoints.save_arrival", lambda _: _unsaved),
    ),
    Mutant(
        "syncfs does nothing",
        "cut",
        replaced(f"{DISK}.sync_file_system", _nothing),
    ),
)
# As they were in the commit that --at names.
FAULTS = (
    Mutant("fault 1, by refused writes", "refused", lambda _: None, "has stored|counts as"),
    Mutant("fault 1, by a full disk", "full", lambda _: None, "has stored|counts as"),
    Mutant("fault 2: log.write.caching un-syncs the metadata", "cached", lambda _: None, "topic "),
    Mutant("fault 8: healing keeps the epoch", "failed-syncs", lambda _: None, "two batches"),
    Mutant("fault 8: a ticket for another log", "failed-syncs-unseen", lambda _: None, "error 56"),
    Mutant("fault 9: a full disk, a stop, no start", "stop on a full disk", lambda _: None, ""),
    Mutant("a vote lost with its directory", "cut", lambda _: None, "epoch 1 of the metadata"),
)


def seeds_until_found(mutant: Mutant, seeds_max: int) -> tuple[int | None, str]:
    from sim.lives_for_mutants import live

    with ExitStack() as stack:
        mutant.apply(stack)
        for seed in range(1, seeds_max + 1):
            try:
                live(mutant.kind, seed)
            except Exception as error:
                if re.search(mutant.says, str(error)):
                    return seed, f"{type(error).__name__}: {error}"
    return None, ""


def report(mutants: tuple[Mutant, ...], words: list[str], seeds_max: int) -> int:
    print("| what was broken | lives | found after | as |\n|---|---|---|---|", flush=True)
    missed = 0
    for mutant in mutants:
        if words and not any(word in mutant.what for word in words):
            continue
        seed, error = seeds_until_found(mutant, seeds_max)
        missed += seed is None
        after = (
            f"not in {seeds_max}" if seed is None else f"{seed} {'seed' if seed == 1 else 'seeds'}"
        )
        said = re.sub(r"\s+", " ", error).replace("|", "/")[:110]
        print(f"| {mutant.what} | {mutant.kind} | {after} | {said} |", flush=True)
    return missed


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        archive = subprocess.run(
            ["git", "archive", commit, "src"], cwd=HERE, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
        for name in OVERLAY:
            source = HERE / "src/ottla/testing" / name
            (Path(directory) / "src/ottla/testing" / name).write_bytes(source.read_bytes())
        yield Path(directory) / "src"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mutants whose names contain one of them")
    parser.add_argument("--at", metavar="COMMIT", help="the mended faults, as they were there")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="give up after so many")
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    sys.path[:0] = [str(HERE / "tests")]
    if options.at is None:
        sys.path[:0] = [str(HERE / "src")]
        return report(MUTANTS, options.words, options.seeds)
    with tree_of(options.at) as source:
        sys.path[:0] = [str(source)]
        return report(FAULTS, options.words, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
