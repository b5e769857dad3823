"""Leader epochs: which one an offset belongs to, and where each ends (KIP-101, KIP-320)."""

from __future__ import annotations

import pytest

from ottla.log.epochs import Epochs
from ottla.testing.disks import MemoryDisk
from unit.log.house import append, append_many, open_log


def epochs_of(*entries: tuple[int, int]) -> Epochs:
    epochs = Epochs()
    for epoch, offset in entries:
        epochs.assign(epoch, offset)
    return epochs


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (1, (1, 10)),
        (2, (2, 20)),
        (3, (2, 20)),
        (4, (4, 50)),
        (5, (4, 50)),
        (7, (7, 99)),
        (8, (-1, -1)),
    ],
)
def test_where_an_epoch_ends(asked: int, answer: tuple[int, int]) -> None:
    """As Kafka answers: what is before the first known one ends there, the future is unknown."""
    epochs = epochs_of((2, 10), (4, 20), (7, 50))
    assert epochs.end_offset_for(asked, 99) == answer


def test_log_without_epochs_knows_none() -> None:
    assert Epochs().end_offset_for(0, 99) == (-1, -1)
    assert Epochs().epoch_at(5) == -1


def test_epoch_of_an_offset() -> None:
    epochs = epochs_of((2, 10), (4, 20))
    assert [epochs.epoch_at(at) for at in (0, 9, 10, 19, 20, 500)] == [-1, -1, 2, 2, 4, 4]


def test_epoch_that_began_where_another_begins_gives_way() -> None:
    assert epochs_of((1, 0), (2, 5), (3, 5)).entries == [(1, 0), (3, 5)]


def test_later_batches_of_the_same_epoch_change_nothing() -> None:
    assert epochs_of((1, 0), (1, 7), (1, 9)).entries == [(1, 0)]


def test_epoch_begins_with_the_leader_and_not_with_its_first_batch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    log.start_epoch(7)
    assert log.epoch_at(log.end_offset) == 7
    assert log.end_offset_for_epoch(0) == (0, 3)
    assert log.end_offset_for_epoch(7) == (7, 3)
    append(log, epoch=7)
    assert log.end_offset_for_epoch(7) == (7, 4)


def test_epochs_survive_a_restart(disk: MemoryDisk) -> None:
    for start in range(3):
        log = open_log(disk)
        log.start_epoch(start)
        for _ in range(2):
            append(log, epoch=start)
        log.close()
    log = open_log(disk)
    assert log.epoch_at(log.end_offset) == 2
    assert [log.epoch_at(at) for at in range(6)] == [0, 0, 1, 1, 2, 2]
    assert log.end_offset_for_epoch(1) == (1, 4)


def test_idle_restarts_write_no_epochs(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, epoch=0)
    log.close()
    before = disk.operations
    for epoch in range(1, 5):
        log = open_log(disk)
        log.start_epoch(epoch)
        log.close()
    assert disk.operations == before
