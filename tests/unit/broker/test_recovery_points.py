"""Recovery points follow the syncs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.storage.recovery_points import RecoveryPointsChore


def _store(syncs: int) -> Any:
    flusher = SimpleNamespace(syncs=syncs)
    return SimpleNamespace(flushers=(flusher, SimpleNamespace(syncs=0)), flusher=flusher)


def test_only_directories_in_which_something_was_synced_are_saved() -> None:
    busy, idle = _store(1), _store(0)
    saved: list[Any] = []

    async def save(store: Any) -> None:
        saved.append(store)

    busy_key, idle_key = _Hashable(busy), _Hashable(idle)
    chore = RecoveryPointsChore(lambda: [busy_key, idle_key], save)  # type: ignore[list-item]
    asyncio.run(chore.run())
    assert saved == [busy_key, idle_key], "after a start all are saved once"
    asyncio.run(chore.run())
    assert len(saved) == 2
    busy.flusher.syncs += 1
    asyncio.run(chore.run())
    assert saved[2:] == [busy_key]


def test_what_could_not_be_saved_is_tried_again() -> None:
    store = _Hashable(_store(1))
    attempts = 0

    async def save(_: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError("no room")

    chore = RecoveryPointsChore(lambda: [store], save)  # type: ignore[list-item]
    with pytest.raises(OSError, match="no room"):
        asyncio.run(chore.run())
    asyncio.run(chore.run())
    asyncio.run(chore.run())
    assert attempts == 2


def test_a_round_ends_when_the_last_directory_is_through_even_if_another_failed() -> None:
    full, slow = _Hashable(_store(1)), _Hashable(_store(1))

    async def run() -> None:
        go_on = asyncio.Event()

        async def save(store: Any) -> None:
            if store is full:
                raise OSError("no room")
            await go_on.wait()

        chore = RecoveryPointsChore(lambda: [full, slow], save)  # type: ignore[list-item]
        round_ = asyncio.create_task(chore.run())
        _, under_way = await asyncio.wait([round_], timeout=0.05)
        assert under_way
        go_on.set()
        with pytest.raises(OSError, match="no room"):
            await round_

    asyncio.run(run())


class _Hashable:
    def __init__(self, store: Any) -> None:
        self.flushers = store.flushers
