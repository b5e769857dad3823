"""Which offsets the batches of a stream get: the reader that Spark holds, with a real broker.

Most of it is asked of the reader directly, as Spark's driver does it; how Spark itself goes about
it is in test_facts.py, test_checkpoints.py and at the end of this file.
"""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    ReadMinRows,
)

from ottla.spark.asker import AGE_S_MAX
from ottla.spark.data_loss import DataLost
from ottla.spark.options.source import SourceOptions
from ottla.spark.planning import CannotRead
from ottla.spark.stream_reader import OttlaStreamReader
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.filling import add_partitions, delete_before, put, put_numbers, record
from spark.kit.streams import OTTLA, Collected, batch_ids, finish, offsets_of, read_stream

ALL = ReadAllAvailable()


class Driver:
    """Calls a reader as Spark does: what goes in and out has been JSON."""

    def __init__(self, broker: Broker, **options: Any) -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap}
        given |= {name.lower(): str(value) for name, value in options.items()}
        self.reader = OttlaStreamReader(SourceOptions.parse(given, streaming=True))

    def initial(self) -> Any:
        return json.loads(json.dumps(self.reader.initialOffset()))

    def latest(self, start: Any, limit: Any = None) -> Any:
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        # A moment later than the last question.
        if self.reader._query is not None:
            self.reader._query._asker._asked_at = 0.0
        return json.loads(json.dumps(self.reader.latestOffset(start, limit)))

    def rows(self, start: Any, end: Any) -> list[int]:
        # The executors get a copy of a reader that has not been asked anything.
        there = pickle.loads(pickle.dumps(OttlaStreamReader(self.reader._options)))
        found = []
        for task in self.reader.partitions(start, end):
            for batch in there.read(pickle.loads(pickle.dumps(task))):
                found += [int(value) for value in batch["value"].to_pylist()]
        return sorted(found)


def delete_topic(broker: Broker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(30)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may still settle is given less time to."""
    monkeypatch.setattr("ottla.spark.asker.SETTLE_TRIES", 2)
    monkeypatch.setattr("ottla.spark.asker.SETTLE_PAUSE_S", 0.01)


# ── the beginning ──────────────────────────────────────────────────────────────────────────────


def test_where_a_query_begins_is_resolved_once(broker: Broker, topic: MakeTopic) -> None:
    name = topic(2)
    put_numbers(broker.bootstrap, name, range(4), partitions=2)
    driver = Driver(broker, subscribe=name)
    first = driver.initial()
    put_numbers(broker.bootstrap, name, range(4, 8), partitions=2)
    assert driver.initial() == first == {name: {"0": 2, "1": 2}}


@pytest.mark.parametrize("start", ["latest", "json", "timestamp"])
def test_a_start_that_moves_is_pinned_by_an_empty_first_batch(
    broker: Broker, topic: MakeTopic, start: str
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(5))
    options = {
        "latest": {"startingOffsets": "latest"},
        "json": {"startingOffsets": json.dumps({name: {"0": -1}})},
        "timestamp": {
            "startingTimestamp": 2**50,
            "startingOffsetsByTimestampStrategy": "latest",
        },
    }[start]
    driver = Driver(broker, subscribe=name, **options)
    begin = driver.initial()
    put_numbers(broker.bootstrap, name, range(5, 8))
    pin = driver.latest(begin)
    assert pin == begin == {name: {"0": 5}}
    assert driver.latest(pin) == {name: {"0": 8}}
    assert driver.rows(pin, {name: {"0": 8}}) == [5, 6, 7]

    # The driver crashed in batch 0, and its start is asked for again.
    replaying = Driver(broker, subscribe=name, **options)
    later = replaying.initial()
    assert later == {name: {"0": 8}}
    assert replaying.rows(later, pin) == [], "the pinned batch has no rows, and that is no loss"
    assert replaying.rows(pin, replaying.latest(pin)) == [5, 6, 7]


@pytest.mark.parametrize("start", ["earliest", "json", "timestamp", "committed"])
def test_a_start_that_stays_needs_no_empty_batch(
    broker: Broker, topic: MakeTopic, start: str
) -> None:
    name = topic(1)
    for number in range(5):
        put(broker.bootstrap, name, [record(b"%d" % number, timestamp=1000 + number)])
    options: dict[str, Any] = {
        "earliest": {"startingOffsets": "earliest"},
        "json": {"startingOffsets": json.dumps({name: {"0": -2}})},
        "timestamp": {"startingTimestamp": 5, "startingOffsetsByTimestampStrategy": "latest"},
        "committed": {"startingOffsets": "committed", "groupId": f"group-of-{name}"},
    }[start]
    driver = Driver(broker, subscribe=name, **options)
    begin = driver.initial()
    end = driver.latest(begin)
    assert (begin, end) == ({name: {"0": 0}}, {name: {"0": 5}})
    put_numbers(broker.bootstrap, name, range(5, 9))
    replaying = Driver(broker, subscribe=name, **options)
    assert replaying.rows(replaying.initial(), end) == [0, 1, 2, 3, 4]


def test_a_topic_that_is_not_there_is_an_error_unless_another_is(
    broker: Broker, topic: MakeTopic
) -> None:
    with pytest.raises(CannotRead, match="topic not-there does not exist"):
        Driver(broker, subscribe="not-there").initial()
    name = topic(1)
    later = f"{name}-later"
    driver = Driver(broker, subscribe=f"{name},{later}")
    begin = driver.initial()
    assert begin == {name: {"0": 0}}
    driver.latest(begin)
    broker.create_topic(later)
    put_numbers(broker.bootstrap, later, range(3))
    end = driver.latest(begin)
    assert end == {name: {"0": 0}, later: {"0": 3}}
    assert driver.rows(begin, end) == [0, 1, 2]


# ── what appears and what goes ─────────────────────────────────────────────────────────────────


def test_new_partitions_and_topics_are_read_from_their_first_record(
    broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(3))
    driver = Driver(broker, subscribePattern=f"^{name}", startingOffsets="latest")
    begin = driver.initial()
    driver.latest(begin)
    add_partitions(broker.bootstrap, name, 11)
    put_numbers(broker.bootstrap, name, range(10, 21), partitions=11)
    broker.create_topic(f"{name}-more")
    put_numbers(broker.bootstrap, f"{name}-more", range(100, 102))
    end = driver.latest(begin)
    assert list(end) == [name, f"{name}-more"]
    assert list(end[name]) == [str(partition) for partition in range(11)], "in order of numbers"
    assert driver.rows(begin, end) == [*range(10, 21), 100, 101]
    assert json.dumps(driver.latest(end)) == json.dumps(end), "the same text: no phantom batch"


def test_a_new_partition_whose_first_records_are_gone_is_a_loss(
    broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    strict = Driver(broker, subscribePattern=f"^{name}", startingOffsets="earliest")
    lax = Driver(
        broker, subscribePattern=f"^{name}", startingOffsets="earliest", failOnDataLoss="false"
    )
    begin = strict.initial()
    broker.create_topic(f"{name}-more")
    put_numbers(broker.bootstrap, f"{name}-more", range(5))
    delete_before(broker.bootstrap, f"{name}-more", 2)
    with pytest.raises(DataLost, match=f"topic {name}-more partition 0: offset 0 was wanted"):
        strict.latest(begin)
    assert lax.rows(begin, lax.latest(begin)) == [2, 3, 4]


@pytest.mark.usefixtures("brief")
def test_a_deleted_topic_is_a_loss_or_goes_with_a_warning(
    broker: Broker, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    stays, goes = topic(1), topic(1)
    for name in (stays, goes):
        put_numbers(broker.bootstrap, name, range(3))
    options = {"subscribe": f"{stays},{goes}", "startingOffsets": "earliest"}
    strict, lax = Driver(broker, **options), Driver(broker, **options, failOnDataLoss="false")
    begin = strict.initial()
    end = strict.latest(begin)
    delete_topic(broker, goes)
    line = f"topic {goes} partition 0: offset 3 was wanted and the partition is gone"
    with pytest.raises(DataLost, match=line):
        strict.latest(end)
    with pytest.raises(DataLost, match=f"topic {goes} partition 0"):
        strict.rows(begin, end)
    with caplog.at_level(logging.WARNING):
        following = lax.latest(end)
        assert following == {stays: {"0": 3}}
        assert lax.rows(end, following) == []
        assert lax.rows(begin, end) == [0, 1, 2]
    assert line in caplog.text


@pytest.mark.usefixtures("brief")
def test_a_log_that_is_shorter_than_it_was_is_a_loss_or_goes_on_at_its_end(
    broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(2))
    begin = {name: {"0": 9}}
    with pytest.raises(DataLost, match=r"offset 9 was wanted, available are 0 to 2.*shorter"):
        Driver(broker, subscribe=name).latest(begin)
    lax = Driver(broker, subscribe=name, failOnDataLoss="false")
    assert lax.latest(begin) == {name: {"0": 2}}
    assert lax.rows(begin, {name: {"0": 2}}) == []
    assert lax.rows({name: {"0": 0}}, begin) == [0, 1], "a replayed batch ends with the log"


def test_retention_is_noticed_before_a_batch_begins(broker: Broker, topic: MakeTopic) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(10))
    driver = Driver(broker, subscribe=name, startingOffsets="earliest")
    begin = driver.initial()
    delete_before(broker.bootstrap, name, 4)
    with pytest.raises(DataLost, match="offset 0 was wanted, available are 4 to 10") as lost:
        driver.latest(begin)
    assert "\n" not in str(lost.value)
    assert "failOnDataLoss=false" in str(lost.value)
    lax = Driver(broker, subscribe=name, failOnDataLoss="false", maxOffsetsPerTrigger=3)
    assert lax.latest(begin) == {name: {"0": 7}}, "what is gone takes no share of the batch"
    assert lax.rows(begin, {name: {"0": 7}}) == [4, 5, 6]


# ── limits ─────────────────────────────────────────────────────────────────────────────────────


def test_a_maximum_is_shared_by_lag_and_all_of_it_is_read(broker: Broker, topic: MakeTopic) -> None:
    name = topic(3)
    put_numbers(broker.bootstrap, name, range(0, 90, 3), partitions=3)
    put_numbers(broker.bootstrap, name, [1, 2], partitions=3)
    driver = Driver(broker, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    assert driver.reader.getDefaultReadLimit() == ReadMaxRows(8)
    start, found, batches = driver.initial(), [], 0
    while (end := driver.latest(start)) != start:
        rows = driver.rows(start, end)
        assert len(rows) <= 8
        found += rows
        start, batches = end, batches + 1
    assert sorted(found) == sorted([*range(0, 90, 3), 1, 2])
    assert batches == 4
    everything = Driver(broker, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    assert everything.latest(everything.initial(), ALL) == start, "trigger(once) has no limit"


def test_a_minimum_is_waited_for(broker: Broker, topic: MakeTopic) -> None:
    name = topic(1)
    driver = Driver(broker, subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger=5)
    assert driver.reader.getDefaultReadLimit() == ReadMinRows(5)
    put_numbers(broker.bootstrap, name, range(1))
    first = driver.latest(driver.initial())
    assert first == {name: {"0": 1}}, "the first batch does not wait"
    put_numbers(broker.bootstrap, name, range(4))
    assert driver.latest(first) == first
    assert driver.latest(first, ALL) == {name: {"0": 5}}
    put_numbers(broker.bootstrap, name, range(1))
    assert driver.latest(first) == {name: {"0": 6}}


def test_available_now_ends_at_what_there_was_and_waits_for_no_minimum(
    broker: Broker, topic: MakeTopic
) -> None:
    name = topic(2)
    put_numbers(broker.bootstrap, name, range(20), partitions=2)
    driver = Driver(
        broker, subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger=7,
        maxOffsetsPerTrigger=8,
    )  # fmt: skip
    driver.reader.prepareForTriggerAvailableNow()
    start, ends = driver.initial(), []
    while (end := driver.latest(start)) != start:
        ends.append(sum(end[name].values()))
        assert len(ends) < 5, "it does not end"
        start = end
        put_numbers(broker.bootstrap, name, range(20, 40), partitions=2)
    assert ends == [8, 16, 20]
    assert driver.reader.reportLatestOffset() == {name: {"0": 10, "1": 10}}


def test_an_idle_query_asks_the_broker_now_and_then(broker: Broker, topic: MakeTopic) -> None:
    name = topic(1)
    driver = Driver(broker, subscribe=name, startingOffsets="earliest")
    begin = driver.initial()
    put_numbers(broker.bootstrap, name, range(3))
    asked = []
    asker = driver.reader._driver._asker
    ask = asker._ask_ends
    asker._ask_ends = lambda cluster: asked.append(1) or ask(cluster)  # type: ignore[method-assign]
    asker._age_s_max = 1000.0
    for _ in range(50):
        assert driver.reader.latestOffset(begin, ALL) == begin
    assert asked == []
    asker._age_s_max = 0.0
    assert driver.reader.latestOffset(begin, ALL) == {name: {"0": 3}}
    assert asker._age_s_max >= AGE_S_MAX


def test_what_executors_get_holds_settings_only(broker: Broker, topic: MakeTopic) -> None:
    driver = Driver(broker, subscribe=topic(1))
    assert len(pickle.dumps(driver.reader)) < 4000


# ── with Spark ─────────────────────────────────────────────────────────────────────────────────


def test_trigger_once_reads_all_there_is(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(2)
    put_numbers(broker.bootstrap, name, range(30), partitions=2)
    frame = read_stream(
        spark, OTTLA, broker.bootstrap, subscribe=name, startingOffsets="earliest",
        maxOffsetsPerTrigger=4,
    )  # fmt: skip
    collected = Collected()
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path))
    query = finish(writer.trigger(once=True).start())
    assert (collected.ids, collected.numbers) == ([0], list(range(30)))
    assert offsets_of(tmp_path, 0) == {name: {"0": 15, "1": 15}}
    (source,) = query.lastProgress["sources"]
    assert json.loads(source["latestOffset"]) == {name: {"0": 15, "1": 15}}


def test_available_now_goes_in_batches_of_the_maximum(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(2)
    put_numbers(broker.bootstrap, name, range(30), partitions=2)
    frame = read_stream(
        spark, OTTLA, broker.bootstrap, subscribe=name, startingOffsets="earliest",
        maxOffsetsPerTrigger=12, minOffsetsPerTrigger=10,
    )  # fmt: skip
    collected = Collected()
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path))
    finish(writer.trigger(availableNow=True).start())
    assert [len(rows) for _, rows in collected.batches] == [12, 12, 6]
    assert collected.numbers == list(range(30))
    assert batch_ids(tmp_path) == [0, 1, 2]
