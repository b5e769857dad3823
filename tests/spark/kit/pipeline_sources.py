"""Sources of a pipeline, opened and read to their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row

from ottla.pipelines.language.model import Pipeline, Source
from ottla.pipelines.language.problems import Place
from spark.kit.streams import TIMEOUT_S, Collected, finish

PLACE = Place(Path("shop.yaml"), 7, 3)

Headers = Sequence[tuple[str, bytes | None]]


class Message(NamedTuple):
    """As a producer gives it."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0
    partition: int = 0


def pipeline_of(directory: Path, bootstrap: str, *sources: Source) -> Pipeline:
    return Pipeline(
        name="shop",
        file=directory / "shop.yaml",
        bootstrap=bootstrap,
        sources={source.name: source for source in sources},
        views={},
        sinks={},
        tests={},
    )


def send(bootstrap: str, topic: str, *messages: Message) -> None:
    """By librdkafka."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for one in messages:
        producer.produce(
            topic,
            one.value,
            one.key,
            one.partition,
            timestamp=one.timestamp_ms,
            headers=list(one.headers),
        )
    assert producer.flush(TIMEOUT_S) == 0


class Read(NamedTuple):
    """What a run to the end has brought: its rows, and the counts of each source."""

    rows: list[Row]
    rows_in: Mapping[str, int]
    bad: Mapping[str, int]


def drain(frame: DataFrame, checkpoint: Path) -> Read:
    """Everything there is now, from where the checkpoint says on."""
    collected = Collected()
    writer = frame.writeStream.foreachBatch(collected)
    query = finish(
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )
    rows_in: dict[str, int] = {}
    bad: dict[str, int] = {}
    for progress in query.recentProgress:
        observed: Mapping[str, Any] = progress.observedMetrics
        for name, counts in observed.items():
            source = name.removeprefix("source:")
            rows_in[source] = rows_in.get(source, 0) + counts.rows
            bad[source] = bad.get(source, 0) + counts.bad
    return Read(collected.rows, rows_in, bad)
