"""Both connectors read odd topics of a real Kafka: every row and every column is the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from ottla.wire.compression import Compression
from spark.kit.comparing import Both
from spark.kit.filling import awkward_records, end_offset, put, put_numbers, record
from spark.kit.odd_topics import OddTopics
from spark.kit.secured_kafka import SecuredKafka

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
T = 1_790_000_000_000


@pytest.fixture(scope="module")
def odd(real_kafka: SecuredKafka) -> Iterator[OddTopics]:
    topics = OddTopics(real_kafka)
    try:
        topics.fill()
        yield topics
    finally:
        topics.close()


@pytest.fixture
def both(spark: SparkSession, connector: str, odd: OddTopics) -> Both:
    return Both(spark, connector, odd.bootstrap)


def check_all_is_there(rows: list[Row], isolation: str) -> None:
    """So that two empty answers, or two that miss the odd part, are not taken for success."""
    count = Counter(row.topic for row in rows)
    awkward = len(awkward_records())
    assert count["odd-codecs"] == len(Compression) * 22 * awkward
    assert count["odd-append-time"] == len(Compression) * awkward
    assert count["odd-large"] == 4
    assert count["odd-deleted"] == 13
    assert count["odd-empty"] == 0
    # Of twelve transactions one keeps every second, the other every third.
    kept = 12 + (6 + 4 if isolation == COMMITTED else 12 + 12)
    assert count["odd-deals"] == 2 * 3 * kept
    assert count["odd-open"] == (1 if isolation == COMMITTED else 3)
    compacted = [row.offset for row in rows if row.topic == "odd-compacted"]
    assert len(compacted) < compacted[-1] / 2
    assert compacted[0] > 0
    assert {row.timestampType for row in rows if row.topic == "odd-append-time"} == {1}
    headers = [row.headers for row in rows if row.headers is not None]
    assert any(len({one.key for one in found}) < len(found) for found in headers)
    assert any(one.value is None for found in headers for one in found)
    assert any(row.key is None and row.value is None for row in rows)


@pytest.mark.parametrize("isolation", [COMMITTED, UNCOMMITTED])
def test_a_batch_of_all_of_them(both: Both, isolation: str) -> None:
    rows = both.same(
        subscribePattern="^odd-.*", includeHeaders=True, **{"kafka.isolation.level": isolation}
    )
    check_all_is_there(rows, isolation)


@pytest.mark.parametrize("isolation", [COMMITTED, UNCOMMITTED])
def test_a_stream_of_all_of_them(both: Both, tmp_path: Path, isolation: str) -> None:
    """In several batches, whose ends fall into gaps and transactions."""
    rows = both.same_stream(
        tmp_path,
        subscribePattern="^odd-.*",
        includeHeaders=True,
        maxOffsetsPerTrigger=900,
        **{"kafka.isolation.level": isolation},
    )
    check_all_is_there(rows, isolation)


@pytest.mark.parametrize("name", ["odd-compacted", "odd-deals"])
def test_ranges_that_begin_and_end_between_rows(both: Both, odd: OddTopics, name: str) -> None:
    partitions = 2 if name == "odd-deals" else 1
    end = end_offset(odd.bootstrap, name)
    options = {"subscribe": name, "kafka.isolation.level": COMMITTED}
    every = [row.offset for row in both.same(**options) if row.partition == 0]
    gap = next(at for at in range(1, end) if at not in every and at + 1 not in every)
    for first, last in [(0, gap), (gap, gap + 1), (gap, end), (gap + 1, every[-1]), (1, end - 1)]:
        texts = {
            "startingOffsets": {name: {str(at): first for at in range(partitions)}},
            "endingOffsets": {name: {str(at): last for at in range(partitions)}},
        }
        rows = both.same(**options, **{key: json.dumps(value) for key, value in texts.items()})
        found = [row.offset for row in rows if row.partition == 0]
        assert found == [at for at in every if first <= at < last]


def test_offsets_by_timestamp(both: Both, odd: OddTopics) -> None:
    name = odd.create("by-time", 2, {"retention.ms": "-1"})
    for partition in (0, 1):
        rows = [record(b"%d" % at, timestamp=T + 100 * at + partition) for at in range(10)]
        put(odd.bootstrap, name, rows[:4], rows[4:], partition=partition)
    per_partition = json.dumps({name: {"0": T + 300, "1": T + 901}})
    late = {"startingTimestamp": T + 5000, "startingOffsetsByTimestampStrategy": "latest"}
    for options, count in (
        ({"startingTimestamp": T + 500}, 10),
        ({"endingTimestamp": T + 500}, 10),
        ({"startingTimestamp": T + 200, "endingTimestamp": T + 500}, 6),
        ({"startingOffsetsByTimestamp": per_partition}, 8),
        ({"endingOffsetsByTimestamp": per_partition}, 12),
        (late, 0),
    ):
        assert len(both.same(subscribe=name, **options)) == count, options
    both.refused(subscribe=name, startingTimestamp=T + 5000)


@pytest.mark.seconds(400)
def test_two_hundred_partitions(both: Both, odd: OddTopics, tmp_path: Path) -> None:
    name = odd.create("many", 200)
    put_numbers(odd.bootstrap, name, range(0, 400, 2), partitions=200)
    rows = both.same(subscribe=name)
    assert sorted(int(row.value) for row in rows) == list(range(0, 400, 2))
    assert both.same_stream(tmp_path, subscribe=name) == rows
