"""format("ottla") gives exactly the rows that Spark's own connector gives, however odd they are.

Here from Ottla; test_row_for_row_on_kafka.py does it with a real Kafka.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from ottla.wire.compression import Compression
from scenarios.polling import until
from spark.kit.comparing import Both
from spark.kit.filling import (
    append_to_log_file,
    awkward_records,
    control_batch,
    emptied_batch,
    put,
    put_numbers,
    record,
)

MakeTopic = Callable[..., str]
T = 1_790_000_000_000


@pytest.fixture
def both(spark: SparkSession, connector: str, broker: Broker) -> Both:
    return Both(spark, connector, broker.bootstrap)


def test_awkward_records_in_every_compression(both: Both, broker: Broker, topic: MakeTopic) -> None:
    name = topic(len(Compression), {"message.timestamp.after.max.ms": 2**62})
    for partition, compression in enumerate(Compression):
        rows = awkward_records()
        singles = [[row] for row in rows]
        place = {"partition": partition, "compression": compression}
        put(broker.bootstrap, name, rows, *singles, rows * 20, **place)
    found = both.same(subscribe=name, includeHeaders=True)
    assert len(found) == len(Compression) * 22 * len(awkward_records())
    assert any(row.micros == -1000 for row in found)
    assert any(row.headers and len(row.headers) == 4 for row in found)
    without = both.same(subscribe=name)
    assert "headers" not in without[0]


def test_times_given_by_the_broker(both: Both, broker: Broker, topic: MakeTopic) -> None:
    name = topic(1, {"message.timestamp.type": "LogAppendTime"})
    put(broker.bootstrap, name, awkward_records(), awkward_records())
    put(broker.bootstrap, name, awkward_records(), compression=Compression.LZ4)
    found = both.same(subscribe=name, includeHeaders=True)
    assert {row.timestampType for row in found} == {1}


def test_a_time_before_1970(both: Both, broker: Broker, topic: MakeTopic) -> None:
    name = topic(1, {"message.timestamp.type": "CreateTime"})
    put(broker.bootstrap, name, [record(b"old", timestamp=at) for at in (-86_400_001, -2, 5)])
    assert [row.micros for row in both.same(subscribe=name)] == [-86_400_001_000, -2000, 5000]


def test_an_empty_topic_and_empty_partitions(both: Both, broker: Broker, topic: MakeTopic) -> None:
    empty, partly = topic(3), topic(3)
    put_numbers(broker.bootstrap, partly, [1, 4, 7], partitions=3)
    assert both.same(subscribe=empty, includeHeaders=True) == []
    assert [row.partition for row in both.same(subscribe=f"{empty},{partly}")] == [1, 1, 1]


def size_of(segments: Path) -> int:
    """Of the log's files; one that compaction takes away meanwhile has none any more."""
    size = 0
    for path in segments.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def test_compacted_gaps(both: Both, broker: Broker, topic: MakeTopic) -> None:
    """Also where a range begins in a gap, or ends in one."""
    compacted = {"cleanup.policy": "compact", "segment.bytes": 2000, "file.delete.delay.ms": 0}
    name = topic(1, compacted)
    batches = [
        [record(b"%d" % at * 40, b"key-%d" % (at % 3)) for at in range(first, first + 5)]
        for first in range(0, 100, 5)
    ]
    put(broker.bootstrap, name, *batches)
    segments = broker.data_dir / f"{name}-0"
    until(lambda: size_of(segments) < 4000, "not compacted")
    found = both.same(subscribe=name)
    assert found[0].offset > 50
    ranges = [(0, 40), (3, 10), (10, found[0].offset), (17, found[0].offset + 1), (30, 99)]
    for start, end in ranges:
        rows = both.same(
            subscribe=name,
            startingOffsets=json.dumps({name: {"0": start}}),
            endingOffsets=json.dumps({name: {"0": end}}),
        )
        assert [row.offset for row in rows] == [
            row.offset for row in found if start <= row.offset < end
        ]


@pytest.mark.parametrize("last", ["a control batch", "an emptied batch"])
def test_offsets_without_a_row_at_the_very_end(
    spark: SparkSession, connector: str, ottla_broker_factory: BrokerFactory, last: str
) -> None:
    """The end is where the position is, not where rows have been counted to."""
    own = ottla_broker_factory()
    own.create_topic("t")
    put(own.bootstrap, "t", [record(b"%d" % at) for at in range(4)])
    tail = control_batch(4) if last == "a control batch" else emptied_batch(4, 3)
    append_to_log_file(own, "t", tail)
    found = Both(spark, connector, own.bootstrap).same(subscribe="t")
    assert [row.offset for row in found] == [0, 1, 2, 3]


def test_ten_megabytes_in_one_value(both: Both, broker: Broker, topic: MakeTopic) -> None:
    name = topic(1, {"max.message.bytes": 12_000_000})
    large = bytes(range(256)) * 40_000
    put(broker.bootstrap, name, [record(b"small")], [record(large, b"k")], [record(b"after")])
    assert [len(row.value) for row in both.same(subscribe=name)] == [5, 10_240_000, 5]


def test_a_hundred_partitions_and_an_empty_topic(
    both: Both, broker: Broker, topic: MakeTopic
) -> None:
    many, empty = topic(100), topic(3)
    put_numbers(broker.bootstrap, many, range(200), partitions=100)
    rows = both.same(subscribe=f"{many},{empty}")
    assert sorted(int(row.value) for row in rows) == list(range(200))
    assert len({row.partition for row in rows}) == 100


def test_ranges_by_time_and_by_offset(both: Both, broker: Broker, topic: MakeTopic) -> None:
    name = topic(2)
    for partition in (0, 1):
        rows = [record(b"%d" % at, timestamp=T + 100 * at + partition) for at in range(10)]
        put(broker.bootstrap, name, rows[:4], rows[4:], partition=partition)

    def places(**options: Any) -> list[tuple[int, int]]:
        texts = {
            key: json.dumps(value) if isinstance(value, dict) else value
            for key, value in options.items()
        }
        return [(row.partition, row.offset) for row in both.same(subscribe=name, **texts)]

    every = [(partition, offset) for partition in (0, 1) for offset in range(10)]
    assert places() == every
    assert places(startingTimestamp=T + 500) == [p for p in every if p[1] >= 5]
    assert places(endingTimestamp=T + 500) == [p for p in every if p[1] < 5]
    assert places(endingTimestamp=T + 100_000) == every
    by_partition = {name: {"0": T + 300, "1": T + 300}}
    assert places(startingOffsetsByTimestamp=by_partition) == [p for p in every if p[1] >= 3]
    assert places(endingOffsetsByTimestamp=by_partition) == [p for p in every if p[1] < 3]
    assert places(startingTimestamp=T, startingOffsets={name: {"0": 9, "1": 9}}) == every, (
        "a time outranks offsets"
    )
    assert places(
        startingOffsets={name: {"0": -2, "1": 7}}, endingOffsets={name: {"0": 2, "1": -1}}
    ) == [(0, 0), (0, 1), (1, 7), (1, 8), (1, 9)]
    none = {"startingTimestamp": T + 100_000}
    both.refused(subscribe=name, **none)
    assert places(**none, startingOffsetsByTimestampStrategy="latest") == []


def test_named_partitions_patterns_and_pieces(both: Both, broker: Broker, topic: MakeTopic) -> None:
    first, second = topic(2), topic(2)
    for name in (first, second):
        put_numbers(broker.bootstrap, name, range(50), partitions=2)
    assigned = both.same(assign=json.dumps({first: [1], second: [0]}))
    assert {(row.topic, row.partition) for row in assigned} == {(first, 1), (second, 0)}
    assert len(both.same(subscribePattern=f"({first}|{second})")) == 100
    assert len(both.same(subscribe=first, minPartitions=7)) == 50
    assert len(both.same(subscribe=first, maxRecordsPerPartition=9)) == 50
