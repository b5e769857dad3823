"""Where new partitions go, and what counts as a broken disk."""

from __future__ import annotations

import errno
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.storage.finder import stranger_of
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.stores import Placement, Store, is_broken
from ottla.broker.threads import RealThreads
from ottla.errors import CannotStart
from ottla.log.directory import DataDirectory
from ottla.log.reserve import Reserve
from ottla.testing.disks import MemoryDisk
from ottla.types import TopicPartition

GIB = 1 << 30


class _Entropy:
    def bytes(self, count: int) -> bytes:
        return bytes(count)

    def below(self, bound: int) -> int:
        return 0


def _store(disk: MemoryDisk, number: int) -> Store:
    path = f"/{number}"
    return Store(
        DataDirectory(disk, path),
        Reserve(disk, path, _Entropy()),
        RealThreads().executor("io", 1),
    )


def _stores(*usable_bytes: int) -> list[Store]:
    disk = MemoryDisk()
    stores = [_store(disk, number) for number in range(len(usable_bytes))]
    for store, count in zip(stores, usable_bytes, strict=True):
        store.usable_bytes = count
    return stores


def _holding(store: Store, size_bytes: int) -> Partition:
    found: Any = SimpleNamespace(data=store.data, size_bytes=size_bytes)
    return cast(Partition, found)


def _chosen(stores: list[Store], partitions: list[Partition], count: int) -> list[int]:
    placement = Placement(stores, partitions)
    chosen = Counter(placement.choose().path for _ in range(count))
    return [chosen[store.path] for store in stores]


def test_one_partition_goes_to_the_least_full() -> None:
    assert _chosen(_stores(GIB, 3 * GIB, 2 * GIB), [], 1) == [0, 1, 0]


def test_many_at_once_share_the_room_by_how_much_there_is() -> None:
    assert _chosen(_stores(GIB, GIB), [], 1000) == [500, 500]
    shares = _chosen(_stores(3 * GIB, GIB), [], 1000)
    assert abs(shares[0] - 750) <= 1
    assert _chosen(_stores(GIB, 0), [], 100) == [100, 0], "a full disk gets none"


def test_partitions_that_were_filled_count_by_the_room_they_left() -> None:
    first, second = stores = _stores(3 * GIB, 2 * GIB)
    full = [_holding(first, GIB) for _ in range(50)]
    assert _chosen(stores, full, 1) == [1, 0]
    empty = [_holding(first, 0) for _ in range(50)]
    assert _chosen(stores, empty, 1) == [0, 1]
    assert second.usable_bytes == 2 * GIB


def test_of_equals_the_one_with_fewer_partitions_is_taken() -> None:
    first, _ = stores = _stores(GIB, GIB)
    assert _chosen(stores, [_holding(first, 10)], 1) == [0, 1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENODEV, errno.ESTALE])
def test_a_disk_that_is_going_is_broken(number: int) -> None:
    assert is_broken(OSError(number, "gone"))


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENOENT, errno.EINTR]
)
def test_a_full_disk_is_not_broken(number: int) -> None:
    assert not is_broken(OSError(number, "full"))


# ------------------------------------------------------------------ two directories of one name


NAME = TopicPartition("orders", 0)


def _twins() -> tuple[Store, Store]:
    first, second = _stores(GIB, GIB)
    first.directory_id, second.directory_id = b"1" * 16, b"2" * 16
    return first, second


def test_the_directory_that_lost_its_id_is_the_stranger() -> None:
    first, second = _twins()
    assert stranger_of((first, True), (second, False), NAME, None) is second
    assert stranger_of((first, False), (second, True), NAME, None) is first
    assert stranger_of((first, False), (second, True), NAME, first.directory_id) is first


def test_of_two_without_an_id_the_metadata_names_the_true_one() -> None:
    first, second = _twins()
    assert stranger_of((first, False), (second, False), NAME, second.directory_id) is first
    assert stranger_of((first, False), (second, False), NAME, first.directory_id) is second


@pytest.mark.parametrize("has_id", [True, False])
def test_where_both_are_as_good_a_person_decides(has_id: bool) -> None:
    first, second = _twins()
    with pytest.raises(CannotStart, match="orders-0 is in /0 and in /1"):
        stranger_of((first, has_id), (second, has_id), NAME, None)
