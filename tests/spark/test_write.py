"""Writing with format("ottla"), batch and streaming, read back by librdkafka."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.pipelines.running.attempts import make_active
from ottla.spark.options.sink import SinkOptions
from ottla.spark.versions import own_version
from ottla.spark.writer import OttlaStreamWriter, OttlaWriter, Span, WrittenByTask
from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from ottla.wire.records import headers_in
from raw_client import RawClient
from records_kit import fetch
from scenarios.polling import until
from spark.conftest import MakeTopic
from spark.kit.children import Child, kill_9, python_workers
from spark.kit.filling import end_offset, put_numbers
from spark.kit.messages import messages_in
from spark.kit.streams import finish, forget_last_commit, read, read_stream

PATIENCE_S = 200.0
HEADERS = "array<struct<key: string, value: binary>>"


def write(frame: DataFrame, broker: Broker, mode: str = "append", **options: Any) -> None:
    texts = {name.replace("__", "."): str(value) for name, value in options.items()}
    writer = frame.write.format("ottla").mode(mode)
    writer.option("kafka.bootstrap.servers", broker.bootstrap).options(**texts).save()


def failure_of(frame: DataFrame, broker: Broker, mode: str = "append", **options: Any) -> str:
    with pytest.raises(PySparkException) as failure:
        write(frame, broker, mode, **options)
    return str(failure.value)


def values_in(broker: Broker, name: str) -> list[bytes | None]:
    return [one.value for one in messages_in(broker.bootstrap, name)]


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_keys_and_values_of_both_types_with_nulls(
    spark: SparkSession, broker: Broker, topic: MakeTopic, kind: str
) -> None:
    name = topic()
    rows = [
        ("k", "plain"),
        ("tombstone", None),
        (None, "no key"),
        (None, None),
        ("", ""),
        ("ü", "é"),
    ]
    frame = spark.createDataFrame(rows, "key string, value string").coalesce(1)
    write(frame.select(f.col("key").cast(kind), f.col("value").cast(kind)), broker, topic=name)
    assert [(one.key, one.value) for one in messages_in(broker.bootstrap, name)] == [
        (_bytes(key), _bytes(value)) for key, value in rows
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def test_rows_go_to_the_topic_in_their_column(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    first, second = topic(), topic(3)
    rows = [(first, "a"), (second, "b"), (first, "c"), (second, "d")]
    write(spark.createDataFrame(rows, "topic string, value string"), broker)
    assert sorted(map(str, values_in(broker, first))) == ["b'a'", "b'c'"]
    assert sorted(map(str, values_in(broker, second))) == ["b'b'", "b'd'"]


def test_option_wins_over_the_column_topic(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    named, other = topic(), topic()
    write(spark.createDataFrame([(other, "v")], "topic string, value string"), broker, topic=named)
    assert values_in(broker, named) == [b"v"]
    assert values_in(broker, other) == []


def test_partition_and_headers_are_taken_from_their_columns(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(3)
    rows = [
        (b"key", b"0", 2, [("a", b"1"), ("a", None), ("b", b"")]),
        (b"key", b"1", 0, None),
        (b"key", b"2", 1, []),
        (b"key", b"3", None, [("only", b"x")]),
    ]
    schema = f"key binary, value binary, partition int, headers {HEADERS}"
    write(spark.createDataFrame(rows, schema), broker, topic=name)
    found = {one.value: one for one in messages_in(broker.bootstrap, name)}
    assert [found[b"%d" % at].partition for at in range(3)] == [2, 0, 1]
    assert found[b"0"].headers == [("a", b"1"), ("a", None), ("b", b"")]
    assert found[b"1"].headers == found[b"2"].headers == []
    assert found[b"3"].headers == [("only", b"x")]


def test_keys_find_the_partitions_that_java_s_and_librdkafka_s_partitioner_choose(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    ours, theirs = topic(7), topic(7)
    keys = [f"key-{at}" * (at % 5) + "ü" * (at % 3) for at in range(3000)]
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "linger.ms": 50}
    )
    for key in keys:
        producer.produce(theirs, key.encode(), key.encode())
    assert producer.flush(60) == 0
    frame = spark.createDataFrame([(key, key) for key in keys], "key string, value string")
    write(frame, broker, topic=ours)
    # librdkafka takes an empty key for none.
    places = [
        {one.value: one.partition for one in messages_in(broker.bootstrap, name) if one.value}
        for name in (ours, theirs)
    ]
    assert places[0] == places[1]
    assert set(places[0].values()) == set(range(7))


def test_rows_of_a_partition_keep_the_order_of_their_task(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(4)
    frame = spark.range(0, 200_000, numPartitions=2).selectExpr(
        "cast(id % 100 as string) key", "concat(id % 100, ':', lpad(id, 100, '0')) value"
    )
    write(frame, broker, topic=name)
    seen: dict[tuple[bytes, bool], list[int]] = {}
    for one in messages_in(broker.bootstrap, name):
        key, _, number = (one.value or b"").partition(b":")
        seen.setdefault((key, int(number) < 100_000), []).append(int(number))
    assert sum(map(len, seen.values())) == 200_000
    assert all(numbers == sorted(set(numbers)) for numbers in seen.values())


def test_rows_without_keys_find_all_partitions(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(3)
    write(
        spark.range(0, 200_000, numPartitions=2).selectExpr("repeat('x', 300) value"),
        broker,
        topic=name,
    )
    counts = Counter(one.partition for one in messages_in(broker.bootstrap, name))
    assert sum(counts.values()) == 200_000
    assert set(counts) == {0, 1, 2}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(spark: SparkSession, broker: Broker, topic: MakeTopic, codec: str) -> None:
    name = topic()
    frame = spark.range(0, 2000, numPartitions=1).selectExpr("concat(id, repeat('x', 200)) value")
    write(frame, broker, topic=name, kafka__compression__type=codec)
    assert values_in(broker, name) == [b"%d" % at + b"x" * 200 for at in range(2000)]
    with RawClient(broker.bootstrap) as client:
        records = fetch(client, name, 0).records
    number = ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)
    assert {header.compression for _, header in headers_in(records)} == {number}


@pytest.mark.parametrize(
    "options",
    [
        {"kafka__acks": "0"},
        {"kafka__acks": "1"},
        {"kafka__acks": "all", "kafka__enable__idempotence": "false"},
        {"kafka__batch__size": "2000"},
        {"kafka__max__request__size": "3000", "kafka__linger__ms": "5"},
        {"kafka__buffer__memory": "20000", "kafka__batch__size": "10000"},
        {"kafka__delivery__timeout__ms": "60000", "kafka__request__timeout__ms": "10000"},
    ],
    ids=str,
)
def test_options_of_the_producer(
    spark: SparkSession, broker: Broker, topic: MakeTopic, options: dict[str, str]
) -> None:
    name = topic()
    frame = spark.range(0, 500, numPartitions=1).selectExpr("concat(id, repeat('x', 100)) value")
    write(frame, broker, topic=name, **options)
    until(lambda: end_offset(broker.bootstrap, name) == 500, "rows are missing")
    assert values_in(broker, name) == [b"%d" % at + b"x" * 100 for at in range(500)]
    with RawClient(broker.bootstrap) as client:
        headers = [header for _, header in headers_in(fetch(client, name, 0).records or b"")]
    limit = int(
        options.get("kafka__batch__size", options.get("kafka__max__request__size", 1_000_000))
    )
    assert max(header.size for header in headers) <= limit
    is_idempotent = options.get("kafka__enable__idempotence", "true") == "true"
    is_idempotent = is_idempotent and options.get("kafka__acks", "all") == "all"
    assert all((header.producer_id >= 0) == is_idempotent for header in headers)


def test_producers_are_reused_by_later_tasks(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    """Each new producer would be remembered for a day by every partition it writes to."""
    name = topic()
    frame = spark.range(0, 10, numPartitions=1).selectExpr("cast(id as string) value")
    for _ in range(6):
        write(frame, broker, topic=name)
    with RawClient(broker.bootstrap) as client:
        headers = [header for _, header in headers_in(fetch(client, name, 0).records or b"")]
    assert len(headers) == 6
    # Spark keeps a few idle workers, and each has one.
    assert len({header.producer_id for header in headers}) < 6


def test_values_of_10_mb(spark: SparkSession, broker: Broker, topic: MakeTopic) -> None:
    name = topic(1, {"max.message.bytes": 12_000_000})
    frame = spark.range(0, 3, numPartitions=1).selectExpr(
        "concat(id, repeat('0123456789', 1000000)) value"
    )
    write(frame, broker, topic=name)
    assert values_in(broker, name) == [b"%d" % at + b"0123456789" * 1_000_000 for at in range(3)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_go_in_smaller_batches_where_the_topic_takes_no_larger_ones(
    spark: SparkSession, broker: Broker, topic: MakeTopic, codec: str
) -> None:
    name = topic(1, {"max.message.bytes": 20_000})
    frame = spark.range(0, 3000, numPartitions=1).selectExpr(
        "concat(id, '-', sha2(cast(id as string), 512)) value"
    )
    write(frame, broker, topic=name, **{"kafka.compression.type": codec})
    found = [int((value or b"").split(b"-")[0]) for value in values_in(broker, name)]
    assert found == list(range(3000))


def test_value_too_large_for_the_topic_is_named_in_one_line(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1, {"max.message.bytes": 1_048_588})
    text = failure_of(spark.range(1).selectExpr("repeat('x', 3000000) value"), broker, topic=name)
    line = next(line for line in text.splitlines() if "cannot write to" in line)
    assert f"partition 0 of topic {name}" in line
    assert "max.message.bytes" in line
    assert "30000" in line
    assert "asyncio" not in text
    assert values_in(broker, name) == []


def test_missing_topic_is_one_line(
    spark: SparkSession, ottla_broker_factory: BrokerFactory
) -> None:
    broker = ottla_broker_factory(auto_create_topics_enable=False)
    text = failure_of(spark.range(1).selectExpr("'v' value"), broker, topic="nowhere")
    assert "the topic nowhere does not exist" in text
    assert "asyncio" not in text


def test_topic_is_created_where_the_broker_creates_topics(
    spark: SparkSession, ottla_broker_factory: BrokerFactory
) -> None:
    broker = ottla_broker_factory(auto_create_topics_enable=True, num_partitions=3)
    write(spark.range(1).selectExpr("'v' value"), broker, topic="new")
    assert values_in(broker, "new") == [b"v"]


def test_broker_that_is_not_there_is_one_line(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(1).selectExpr("'v' value")
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "500"}
    with pytest.raises(PySparkException, match=r"cannot write to 127\.0\.0\.1:1: "):
        frame.write.format("ottla").mode("append").option("topic", "t").options(**options).save()


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (["1 key"], "'value' is missing"),
        (["1 value"], "'value' is to be binary or string, found int32"),
        (["'v' value", "1.5 partition"], "'partition' is to be int"),
        (["'v' value", "array('a') headers"], "'headers' is to be"),
        (["'v' value", "cast(null as string) topic"], "has no topic"),
        (["'v' value", "7 partition"], "partition 7"),
    ],
    ids=lambda text: str(text),
)
def test_rows_that_cannot_be_written_are_refused_with_the_column_s_name(
    spark: SparkSession, broker: Broker, topic: MakeTopic, columns: list[str], complaint: str
) -> None:
    options = {} if "topic" in columns[-1] else {"topic": topic()}
    assert complaint in failure_of(spark.range(1).selectExpr(*columns), broker, **options)


def test_there_must_be_a_topic(spark: SparkSession, broker: Broker) -> None:
    assert "no topic to write to" in failure_of(spark.range(1).selectExpr("'v' value"), broker)


def test_only_appending_makes_sense(spark: SparkSession, broker: Broker, topic: MakeTopic) -> None:
    """Kafka's sink refuses overwrite and ignore; the other refusals are Spark's own."""
    name = topic()
    frame = spark.range(1).selectExpr("'v' value")
    assert 'mode("append")' in failure_of(frame, broker, "overwrite", topic=name)
    for mode in ("ignore", "errorifexists"):
        assert "append" in failure_of(frame, broker, mode, topic=name).lower()
    assert values_in(broker, name) == []


def test_empty_frames_write_nothing(spark: SparkSession, broker: Broker, topic: MakeTopic) -> None:
    name = topic()
    write(spark.range(0).selectExpr("'v' value"), broker, topic=name)
    assert values_in(broker, name) == []


@pytest.fixture
def speculating(spark: SparkSession) -> Iterator[SparkSession]:
    """As an application that was started with spark.speculation=true hands it to its tasks."""
    session = spark.newSession()
    session.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    session.conf.set("spark.speculation", "true")
    make_active(session)
    yield session
    make_active(spark)


def test_speculation_is_refused_before_a_row_is_written(
    speculating: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(), topic()
    put_numbers(broker.bootstrap, source, range(10))
    text = failure_of(speculating.range(5).selectExpr("'v' value"), broker, topic=target)
    assert (
        "CannotWrite: spark.speculation is true: Spark would run a slow task twice at once, and "
        "both would write its rows; start the application with spark.speculation=false"
    ) in text
    with pytest.raises(PySparkException, match=r"spark\.speculation is true"):
        finish(start_copy(speculating, broker, source, target, tmp_path / "copy"))
    assert values_in(broker, target) == []
    rows = read(speculating, "ottla", broker.bootstrap, subscribe=source)
    assert rows.count() == 10, "to read twice does no harm"


def numbers_in(broker: Broker, name: str) -> list[int]:
    return sorted(int(value or b"") for value in values_in(broker, name))


def start_copy(spark: SparkSession, broker: Broker, source: str, target: str, place: Path) -> Any:
    frame = read_stream(
        spark, "ottla", broker.bootstrap, subscribe=source, startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
    )  # fmt: skip
    writer = frame.select("key", "value").writeStream.format("ottla").option("topic", target)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    return writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()


def test_stream_goes_on_where_it_stopped_and_repeats_only_a_batch_that_was_not_committed(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(2), topic(2)
    put_numbers(broker.bootstrap, source, range(100), 2)
    finish(start_copy(spark, broker, source, target, tmp_path))
    assert numbers_in(broker, target) == list(range(100))
    put_numbers(broker.bootstrap, source, range(100, 140), 2)
    finish(start_copy(spark, broker, source, target, tmp_path))
    assert numbers_in(broker, target) == list(range(140))
    forget_last_commit(tmp_path)
    finish(start_copy(spark, broker, source, target, tmp_path))
    counts = Counter(numbers_in(broker, target))
    assert set(counts) == set(range(140))
    assert {number for number, count in counts.items() if count == 2} == set(range(100, 140))


def test_complete_mode_appends_each_result(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """As Kafka's sink does."""
    source, target = topic(), topic()
    put_numbers(broker.bootstrap, source, range(10))

    def run() -> None:
        frame = read_stream(
            spark, "ottla", broker.bootstrap, subscribe=source, startingOffsets="earliest"
        )
        counts = frame.groupBy("topic").count().selectExpr("cast(count as string) value")
        writer = counts.writeStream.format("ottla").outputMode("complete").option("topic", target)
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
        writer = writer.option("checkpointLocation", str(tmp_path))
        finish(writer.trigger(availableNow=True).start())

    run()
    put_numbers(broker.bootstrap, source, range(5))
    run()
    assert numbers_in(broker, target) == [10, 15]


@pytest.fixture
def options(broker: Broker) -> SinkOptions:
    return SinkOptions.parse({"kafka.bootstrap.servers": broker.bootstrap, "topic": "t"})


def test_commit_and_abort_may_come_again_and_without_messages(options: SinkOptions) -> None:
    told = WrittenByTask((Span("t", 0, 0, 9, 10),), own_version())
    batch, stream = OttlaWriter(options), OttlaStreamWriter(options)
    for _ in range(2):
        batch.commit([told, None])
        batch.abort([None, None])
        stream.commit([told], 7)
        stream.abort([None, told], 7)


def test_writers_and_their_messages_can_be_pickled_also_after_use(
    broker: Broker, topic: MakeTopic
) -> None:
    import pyarrow as pa

    name = topic(2)
    texts = {"kafka.bootstrap.servers": broker.bootstrap, "topic": name}
    for kind in (OttlaWriter, OttlaStreamWriter):
        writer = kind(SinkOptions.parse(texts))
        for _ in range(2):
            rows = pa.RecordBatch.from_pydict({"key": ["a", "a"], "value": ["v", "w"]})
            message = pickle.loads(pickle.dumps(writer.write(iter([rows]))))
            assert message.rows == 2
            assert message.version == own_version()
            assert message.transaction is None
            writer = pickle.loads(pickle.dumps(writer))
    (span,) = message.spans
    assert (span.topic, span.first_offset, span.last_offset, span.rows) == (name, 6, 7, 2)
    assert end_offset(broker.bootstrap, name, span.partition) == 8


def test_failure_of_the_rows_themselves_stays_what_it_is(options: SinkOptions) -> None:
    def broken() -> Iterator[Any]:
        raise ZeroDivisionError("upstream")
        yield

    with pytest.raises(ZeroDivisionError, match="upstream"):
        OttlaWriter(options).write(broken())


@pytest.mark.seconds(2 * PATIENCE_S)
def test_task_whose_worker_is_killed_is_tried_again_and_no_row_is_lost(
    broker: Broker, topic: MakeTopic, tmp_path: Path, jars: list[Path]
) -> None:
    name, rows, go_on = topic(), 12_000, tmp_path / "go-on"
    job = {
        "bootstrap": broker.bootstrap, "topic": name, "rows": rows, "tasks": 2,
        "go_on": str(go_on), "directory": str(tmp_path),
    }  # fmt: skip
    with Child("spark.kit.writing", job, tmp_path) as child:
        # A driver of its own is slow to start where much else runs.
        until(
            lambda: child.check() and end_offset(broker.bootstrap, name) > 0,
            "the first half was not written",
            PATIENCE_S,
        )
        killed = [worker for worker in python_workers() if kill_9(worker)]
        assert killed
        go_on.touch()
        child.wait(PATIENCE_S)
    counts = Counter(int((value or b"").split()[0]) for value in values_in(broker, name))
    assert set(counts) == set(range(rows))
    assert max(counts.values()) == 2, "what was written before the kill is there twice"
