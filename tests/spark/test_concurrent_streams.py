"""Streams that open at once, and the one map of Spark's into which all of them write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import ottla.spark
from ottla.pipelines.running.attempts import make_active
from ottla.pipelines.running.causes import cause_of
from ottla.spark.concurrent_streams import let_streams_open_together
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.filling import put, record
from spark.kit.pipeline_runs import run_once
from spark.kit.streams import OTTLA, drain, read_stream

# What a stream writes there as it opens.
OPENING = (
    "SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME",
)  # fmt: skip


def environment(spark: SparkSession) -> Any:
    """Of the source's workers, as this session sees it: a Java map."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()  # type: ignore[attr-defined]
    return sources.lookupDataSource(OTTLA).dataSourceCls().envVars()


@contextmanager
def fresh(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own, in which nothing is registered yet."""
    session = spark.newSession()
    make_active(session)
    yield session
    make_active(spark)


def numbers(spark: SparkSession, broker: Broker, make: MakeTopic) -> DataFrame:
    topic = make()
    put(broker.bootstrap, topic, [record(b"%d" % number) for number in range(3)])
    return read_stream(spark, OTTLA, broker.bootstrap, subscribe=topic, startingOffsets="earliest")


def test_a_damaged_environment_fails_every_task_of_the_jvm(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """Why all of this is done. Spark's own map, with the count that two writers at once leave."""
    with fresh(spark) as session:
        frame = numbers(session, broker, topic)
        drain(frame, tmp_path / "before")
        with miscounted(session):
            with pytest.raises(StreamingQueryException) as failure:
                drain(frame, tmp_path / "damaged")
            cause = cause_of(failure.value).text
            assert "Illegal size 5 of collection, expected 6" in cause or "serializable" in cause
        assert drain(frame, tmp_path / "after").numbers == [0, 1, 2]


@contextmanager
def miscounted(spark: SparkSession) -> Iterator[None]:
    wrapper = environment(spark)
    jvm_map = field(wrapper, "underlying")
    count = java_field(jvm_map, "contentSize")
    right = count.getInt(jvm_map)
    assert right == wrapper.size()
    count.setInt(jvm_map, right + 1)
    yield
    count.setInt(jvm_map, right)


def field(owner: Any, name: str) -> Any:
    return java_field(owner, name).get(owner)


def java_field(owner: Any, name: str) -> Any:
    kind = owner.getClass()
    while kind is not None:
        for one in kind.getDeclaredFields():
            if one.getName().endswith(name):
                one.setAccessible(True)
                return one
        kind = kind.getSuperclass()
    raise AssertionError(f"{owner.getClass().getName()} has no {name}")


def is_for_many_writers(spark: SparkSession) -> bool:
    jvm: Any = spark.sparkContext._jvm
    kind = jvm.java.lang.Class.forName("java.util.concurrent.ConcurrentMap")
    return bool(kind.isInstance(environment(spark)))


@pytest.mark.parametrize("make_safe", [let_streams_open_together, ottla.spark.register])
def test_streams_write_into_no_map_that_only_one_may_change(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path, make_safe: Any
) -> None:
    with fresh(spark) as untouched:
        shared = environment(untouched)
        for name in OPENING:
            shared.remove(name)
        before = dict(shared)
        with fresh(spark) as session:
            make_safe(session)
            frame = numbers(session, broker, topic)
            assert drain(frame, tmp_path / "checkpoint").numbers == [0, 1, 2]
            assert set(OPENING) <= set(environment(session))
            assert is_for_many_writers(session)
        assert dict(shared) == before, "a stream has written into what all sessions share"


def test_flows_of_a_pipeline_may_open_at_once(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic()
    put(broker.bootstrap, name, [record(b"%d" % number) for number in range(3)])
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""
version: 1
name: together
bootstrap: {broker.bootstrap}
sources: {{numbers: {{topic: {name}, format: string}}}}
sinks:
  one: {{from: numbers, files: one, format: json}}
  other: {{from: numbers, files: other, format: json}}
""")
    shared = environment(spark)
    for one in OPENING:
        shared.remove(one)
    before = dict(shared)
    run_once(spark, file)
    assert dict(shared) == before
