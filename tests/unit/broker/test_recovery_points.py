"""Recovery points follow the syncs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.recovery_points import RecoveryPointsChore


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


class _Hashable:
    def __init__(self, store: Any) -> None:
        self.flushers = store.flushers
