"""A query with `groupId`: every lag tool sees how far it is, and none can hold it up."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

import ottla.types
from ottla.client.blocking import Blocking
from ottla.client.settings import ClientSettings
from ottla.errors import CoordinatorNotAvailable
from ottla.spark.group_progress import PAUSE_AFTER_FAILURE_S, GroupProgress
from ottla.testing import Broker
from scenarios.polling import until
from spark.conftest import MakeTopic
from spark.kit.filling import put_numbers
from spark.kit.streams import OTTLA, drain, read_stream, running, until_query
from spark.test_stream import Driver


def committed(broker: Broker, group: str, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(30).topic_partitions
    return {one.partition: one.offset for one in found if one.topic == topic and one.offset >= 0}


def test_after_available_now_the_lag_that_people_see_is_zero(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name, group = topic(2), f"job-{tmp_path.name}"
    put_numbers(broker.bootstrap, name, range(31), partitions=2)
    frame = read_stream(
        spark, OTTLA, broker.bootstrap, subscribe=name, startingOffsets="earliest", groupId=group,
        maxOffsetsPerTrigger=10,
    )  # fmt: skip
    assert drain(frame, tmp_path / "checkpoint").numbers == list(range(31))
    command = ["groups", "describe", group, "--bootstrap", broker.bootstrap, "--json"]
    shown = subprocess.run(
        [sys.executable, "-m", "ottla", *command], capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0, shown.stderr
    offsets = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {(one["partition"], one["committed"], one["lag"]) for one in offsets} == {
        (0, 16, 0),
        (1, 15, 0),
    }


def test_a_running_query_commits_what_spark_has_finished_and_not_more(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name, group = topic(1), f"job-{tmp_path.name}"
    put_numbers(broker.bootstrap, name, range(5))
    frame = read_stream(
        spark, OTTLA, broker.bootstrap, subscribe=name, startingOffsets="earliest", groupId=group
    )
    with running(frame, tmp_path / "checkpoint") as (query, collected):
        until_query(query, lambda: committed(broker, group, name) == {0: 5}, "no progress")
        assert len(collected.rows) == 5


def test_only_finished_offsets_are_committed(broker: Broker, topic: MakeTopic) -> None:
    name = topic(1)
    group = f"job-{name}"
    put_numbers(broker.bootstrap, name, range(8))
    driver = Driver(
        broker, subscribe=name, startingOffsets="earliest", groupId=group, maxOffsetsPerTrigger=3
    )
    begin = driver.initial()
    first = driver.latest(begin)
    driver.rows(begin, first)
    assert committed(broker, group, name) == {0: 0}, "the batch is planned and not finished"
    second = driver.latest(first)
    assert committed(broker, group, name) == {0: 3}
    driver.reader.commit(second)
    assert committed(broker, group, name) == {0: 6}


def test_a_query_begins_where_its_group_is(broker: Broker, topic: MakeTopic) -> None:
    name = topic(2)
    group = f"job-{name}"
    put_numbers(broker.bootstrap, name, range(10), partitions=2)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(name, 1, 4)], asynchronous=False)
    finally:
        consumer.close()
    driver = Driver(broker, subscribe=name, startingOffsets="committed", groupId=group)
    begin = driver.initial()
    assert begin == {name: {"0": 0, "1": 4}}, "without a commit from the first record on"
    assert driver.rows(begin, driver.latest(begin)) == [0, 2, 4, 6, 8, 9]


def test_a_group_with_members_of_its_own_costs_a_warning(
    broker: Broker, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(1)
    group = f"job-{name}"
    put_numbers(broker.bootstrap, name, range(3))
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        member.subscribe([name])
        until(lambda: member.poll(0.1) is not None or member.assignment(), "no member")
        driver = Driver(broker, subscribe=name, startingOffsets="earliest", groupId=group)
        with caplog.at_level(logging.WARNING):
            begin = driver.initial()
            end = driver.latest(begin)
            assert driver.rows(begin, end) == [0, 1, 2]
            driver.reader.commit(end)
        warnings = [one for one in caplog.records if "could not be committed" in one.message]
        assert len(warnings) == 1, "said once"
        assert group in warnings[0].message
    finally:
        member.close()


# ── a coordinator that does not answer ─────────────────────────────────────────────────────────

PARTITION = ottla.types.TopicPartition("t", 0)


class Held(Blocking):
    """A client whose answers the test gives."""

    def __init__(self) -> None:
        super().__init__(ClientSettings(bootstrap=("localhost:1",)))
        self.asked: list[Future[None]] = []

    def submit(self, make: Any) -> Future[Any]:
        self.asked.append(Future())
        return self.asked[-1]


def test_no_answer_holds_the_query_up_once_and_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.group_progress.WAIT_S", 0.01)
    held = Held()
    progress = GroupProgress(lambda: held, "g")
    for offset in range(100):
        progress.commit({PARTITION: offset})
    assert len(held.asked) == 1, "one at a time"
    held.asked[0].set_result(None)
    progress.commit({PARTITION: 100})
    assert len(held.asked) == 2, "then the newest"


def test_after_a_failure_there_is_a_pause_but_not_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ottla.spark.group_progress.WAIT_S", 0.01)
    now = 0.0
    held = Held()
    progress = GroupProgress(lambda: held, "g", clock=lambda: now)
    progress.commit({PARTITION: 1})
    held.asked[0].set_exception(CoordinatorNotAvailable("away"))
    progress.commit({PARTITION: 2})
    progress.commit({PARTITION: 3})
    assert len(held.asked) == 1
    now = PAUSE_AFTER_FAILURE_S + 1
    progress.commit({PARTITION: 3})
    assert len(held.asked) == 2
    held.asked[1].set_exception(CoordinatorNotAvailable("away"))
    monkeypatch.setattr("ottla.spark.group_progress.WAIT_S_LAST", 0.01)
    progress.commit({PARTITION: 4}, is_last=True)
    assert len(held.asked) == 3


def test_what_is_committed_already_is_not_committed_again() -> None:
    held = Held()
    done: Future[None] = Future()
    done.set_result(None)
    held.submit = lambda make: held.asked.append(done) or done  # type: ignore[method-assign, func-returns-value]
    progress = GroupProgress(lambda: held, "g")
    for _ in range(10):
        progress.commit({PARTITION: 7})
    assert len(held.asked) == 1
