"""Which partitions are in trouble is known without a look at each of those that are not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.log.corruption import Corruption
from raw_client import RawClient
from records_kit import batch, produce
from scenarios.in_process import BrokerInside
from scenarios.polling import until

Trouble = Callable[[BrokerInside, RawClient], None]


def a_refused(operation: str) -> Trouble:
    def happens(inside: BrokerInside, client: RawClient) -> None:
        inside.disk.fail(operation, errno.ENOSPC, under=partition_of(inside).directory)
        assert produce(client, "t", batch(b"v")).error_code == ErrorCode.KAFKA_STORAGE_ERROR

    return happens


def damage(inside: BrokerInside, client: RawClient) -> None:
    found = Corruption("t-0/0.log", 0, 0, 1, "a bit has flipped")
    on_its_loop(inside, lambda: partition_of(inside).condemn(found))


def a_lost_directory(inside: BrokerInside, client: RawClient) -> None:
    on_its_loop(inside, lambda: partition_of(inside).go_offline(OSError(errno.EIO, "gone")))


def partition_of(inside: BrokerInside) -> Any:
    return inside.node._partitions.get("t", 0)


def on_its_loop(inside: BrokerInside, work: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return work()

    return inside.call(run())


@pytest.mark.parametrize(
    "trouble",
    [a_refused("write"), a_refused("sync"), damage, a_lost_directory],
    ids=["a write", "a sync", "damage", "a lost directory"],
)
def test_trouble_is_found_after_a_calm_look(trouble: Trouble, tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("t")
        inside.create_topic("u")
        assert produce(client, "t", batch(b"v")).error_code == 0
        partitions = inside.node._partitions
        assert on_its_loop(inside, partitions.failing) == []
        assert partitions._calm_at is not None, "from here on nobody is looked at"
        trouble(inside, client)
        assert on_its_loop(inside, partitions.failing) == [partition_of(inside)]


def test_what_is_over_is_forgotten(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("t")
        assert produce(client, "t", batch(b"v")).error_code == 0
        assert on_its_loop(inside, inside.node._partitions.failing) == []
        a_refused("write")(inside, client)
        assert on_its_loop(inside, inside.node._partitions.failing) != []
        inside.disk.heal()
        until(lambda: not on_its_loop(inside, inside.node._partitions.failing), "still failing")
        assert produce(client, "t", batch(b"v")).error_code == 0
