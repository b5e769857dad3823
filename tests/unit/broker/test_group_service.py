"""Where groups live, and how a decision becomes a reply."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.control.groups import GroupService
from ottla.broker.control.shards import coordinator_code_of, java_hash, when_decided
from ottla.broker.network.waiting import Deferred
from ottla.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    ErrorCode,
    NotLeader,
    StorageFailed,
    UnknownTopicOrPartition,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("polygenelubricants", 0),  # its hash is Java's smallest int, of which Kafka makes zero
        ("\N{GRINNING FACE}", 0xD83D * 31 + 0xDE00),
        ("consumer-group", 1_738_392_088),
    ],
)
def test_a_group_has_the_hash_that_java_gives_it(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_what_befalls_the_partition_is_told_in_words_that_group_clients_know() -> None:
    assert coordinator_code_of(StorageFailed()) is ErrorCode.NOT_COORDINATOR
    assert coordinator_code_of(NotLeader()) is ErrorCode.NOT_COORDINATOR
    assert coordinator_code_of(OSError()) is ErrorCode.NOT_COORDINATOR
    assert coordinator_code_of(UnknownTopicOrPartition()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator_code_of(CoordinatorLoading()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_service_without_a_broker_is_not_available() -> None:
    with pytest.raises(CoordinatorNotAvailable):
        GroupService().shard_of("g")


def test_a_reply_that_is_there_goes_out_at_once_and_a_refusal_is_raised() -> None:
    loop = asyncio.new_event_loop()
    try:
        ready: asyncio.Future[str] = loop.create_future()
        ready.set_result("reply")
        assert when_decided(ready, str) == "reply"
        refused: asyncio.Future[str] = loop.create_future()
        refused.set_exception(CoordinatorLoading("later"))
        with pytest.raises(CoordinatorLoading):
            when_decided(refused, str)
    finally:
        loop.close()


def test_a_reply_that_comes_later_is_deferred_and_a_failure_becomes_a_refusal() -> None:
    async def scenario() -> list[object]:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[object]] = [loop.create_future() for _ in range(3)]
        outcomes = [when_decided(future, lambda error: f"no: {error}") for future in futures]
        replies: list[object] = []
        for outcome in outcomes:
            assert isinstance(outcome, Deferred)
            outcome.when_resolved(replies.append)
        futures[0].set_result("yes")
        futures[1].set_exception(CoordinatorLoading("later"))
        futures[2].cancel()
        await asyncio.sleep(0)
        return replies

    assert asyncio.run(scenario()) == ["yes", "no: later", "no: the request was cancelled"]
