"""What a new leader tells before it knows what was committed, and whose fetches tell it."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.deferred import Deferred
from ottla.broker.request import CONNECTION_NUMBER
from ottla.errors import ErrorCode, FetchSessionNotFound
from ottla.types import LeaderEpoch
from unit.broker.test_fetch_sessions import OTHER, OWN, Client, Stage, in_a_loop, settle

BOTH = (OWN, OTHER)


def appended(stage: Stage) -> None:
    stage.append(0)
    stage.sync(0)


def led_anew(**options: Any) -> Stage:
    """One message is committed in it, and one is not."""
    stage = Stage(followed=True, **options)
    appended(stage)
    follower = Client(stage, OTHER)
    follower.want(0, 1, stage[0].leader_epoch)
    follower.fetch(max_wait_ms=0)
    assert stage[0].high_watermark.offset == 1
    appended(stage)
    stage.lead(0)
    return stage


def by_connection(stage: Stage, number: int, offset: int) -> Client:
    client = Client(stage, OTHER)
    client.memory[CONNECTION_NUMBER] = number
    client.want(0, offset, stage[0].leader_epoch)
    return client


@in_a_loop
async def test_a_fetch_that_comes_late_by_an_earlier_connection_counts_no_more() -> None:
    stage = Stage(followed=True)
    for _ in range(3):
        appended(stage)
    replicas = stage[0].replicas
    assert replicas is not None
    by_connection(stage, 2, 3).fetch(max_wait_ms=0)
    with pytest.raises(FetchSessionNotFound):
        by_connection(stage, 1, 1).send(max_wait_ms=0)
    assert replicas.progress()[OTHER].end_offset == 3
    by_connection(stage, 3, 2).fetch(max_wait_ms=0)
    assert replicas.progress()[OTHER].end_offset == 2


@in_a_loop
async def test_a_consumer_waits_until_a_new_leader_knows_what_was_committed() -> None:
    stage = led_anew()
    client = Client(stage)
    client.want(0, 0)
    waiting = client.send(max_wait_ms=60_000)
    assert isinstance(waiting, Deferred)
    told: list[Any] = []
    waiting.when_resolved(told.append)
    by_connection(stage, 1, 1).fetch(max_wait_ms=0)
    await settle()
    assert told == []
    by_connection(stage, 1, 2).fetch(max_wait_ms=0)
    await settle()
    answer = client.take(told[0])[0]
    assert (answer.error_code, answer.high_watermark) == (0, 2)
    assert answer.records


@in_a_loop
async def test_whoever_has_waited_in_vain_is_told_to_try_again() -> None:
    stage = led_anew()
    client = Client(stage)
    client.want(0, 0)
    answer = client.fetch(max_wait_ms=0)[0]
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answer.high_watermark, bytes(answer.records)) == (-1, b"")


@in_a_loop
async def test_where_too_few_are_in_sync_what_is_certain_is_read_and_no_end_is_told() -> None:
    """Seeds 145 and 162: it told of one that lay before what a consumer had been told already."""
    stage = led_anew()
    partition = stage[0]
    assert partition.replicas is not None
    partition._in_sync_min = 2
    epoch = LeaderEpoch(partition.leader_epoch)
    partition.lead(epoch, BOTH, (OWN,), partition.replicas.partition_epoch + 1, 0)
    client = Client(stage)
    client.want(0, 0)
    answer = client.fetch(max_wait_ms=0)[0]
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, -1, -1)
    assert answer.records
    client.want(0, 1)
    assert client.fetch(max_wait_ms=0)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@in_a_loop
async def test_a_follower_does_not_wait_for_what_only_its_fetches_tell() -> None:
    stage = led_anew()
    follower = by_connection(stage, 1, 0)
    answer = follower.fetch(max_wait_ms=0)[0]
    assert answer.error_code == 0
    assert answer.records
