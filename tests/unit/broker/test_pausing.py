"""A partition whose files nobody touches for a moment, so that it can move to another directory."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.storage.partition import Partition
from ottla.errors import StorageFailed
from records_kit import batch
from unit.broker.test_group_commit import NOW_MS, Waiter, a_house

PATIENCE_S = 60.0


def appended(partition: Partition, waiter: Waiter) -> None:
    end_offset = partition.append(batch(b"x"), NOW_MS).end_offset
    partition.wait_committed(end_offset, waiter, end_offset)


def test_what_comes_in_a_pause_waits_and_is_written_after_it() -> None:
    async def story() -> None:
        async with a_house() as house, asyncio.timeout(PATIENCE_S):
            partition, waiter = house.partition(), Waiter()
            appended(partition, waiter)
            await waiter.told_about(1)
            async with partition.pausing(PATIENCE_S):
                # As somebody does whose turn it is to sync what nobody has.
                house.flusher.want_sync(partition)
                appended(partition, waiter)
                for _ in range(5):
                    await asyncio.sleep(0)
                assert len(waiter.told) == 1
                assert partition.contents().end_offset == 1
                assert not partition.is_quiet
            assert await waiter.told_about(2) == [(1, None), (2, None)]

    asyncio.run(story())


def test_a_pause_comes_about_however_much_is_written() -> None:
    async def story() -> None:
        async with a_house() as house, asyncio.timeout(PATIENCE_S):
            partition, waiter = house.partition(), Waiter()
            is_over = False

            async def write_on() -> int:
                count = 0
                while not is_over:
                    appended(partition, waiter)
                    count += 1
                    await asyncio.sleep(0)
                return count

            writing = asyncio.ensure_future(write_on())
            await waiter.told_about(10)
            for _ in range(3):
                async with partition.pausing(PATIENCE_S):
                    written = partition.contents().end_offset
                    await asyncio.sleep(0)
                    assert partition.contents().end_offset == written
            is_over = True
            await waiter.told_about(await writing)
            assert all(error is None for _, error in waiter.told)

    asyncio.run(story())


def test_a_disk_that_does_not_come_to_rest_is_not_waited_for() -> None:
    async def story() -> None:
        async with a_house() as house, asyncio.timeout(PATIENCE_S):
            partition, waiter = house.partition(), Waiter()
            house.disk.go.clear()
            appended(partition, waiter)
            await asyncio.to_thread(house.disk.is_syncing.wait, PATIENCE_S)
            with pytest.raises(TimeoutError):
                async with partition.pausing(0.0):
                    pytest.fail("a sync is under way")
            house.disk.go.set()
            appended(partition, waiter)
            await waiter.told_about(2)
            partition.leave(StorageFailed("gone"))
            with pytest.raises(StorageFailed):
                async with partition.pausing(PATIENCE_S):
                    pytest.fail("it is gone")

    asyncio.run(story())
