"""Flows without a pipeline file: rows that a test gives, into a sink."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ottla.pipelines.language.model import Pipeline, Sink
from ottla.pipelines.language.problems import Place
from ottla.pipelines.sinks import queries
from ottla.pipelines.views.graph import Flow
from spark.kit.streams import finish

PLACE = Place(Path("pipeline.yaml"), 1, 1)


def pipeline_of(*sinks: Sink, name: str = "shop", bootstrap: str = "127.0.0.1:1") -> Pipeline:
    return Pipeline(
        name=name,
        file=Path("pipeline.yaml"),
        bootstrap=bootstrap,
        sources={},
        views={},
        sinks={sink.name: sink for sink in sinks},
        tests={},
    )


class Feed:
    """A stream of JSON lines; what one `put` brings is one batch."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str) -> None:
        self._directory = directory
        directory.mkdir()
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        self.frame = reader.json(str(directory))
        self._count = 0

    def put(self, *rows: Mapping[str, Any]) -> None:
        self._count += 1
        text = "".join(json.dumps(row) + "\n" for row in rows)
        aside = self._directory / ".aside"
        aside.write_text(text)
        aside.rename(self._directory / f"{self._count:04}.json")


def drain(frame: DataFrame, sink: Sink, pipeline: Pipeline, checkpoint: Path) -> None:
    """All batches there are, from where the checkpoint says on."""
    flow = Flow(sink.name, sink, frame, ())
    trigger = {"availableNow": True}
    finish(queries.start(flow, pipeline=pipeline, checkpoint=str(checkpoint), trigger=trigger))


def write_once(frame: DataFrame, sink: Sink, pipeline: Pipeline, run_id: str = "run-1") -> None:
    queries.write_once(Flow(sink.name, sink, frame, ()), pipeline=pipeline, run_id=run_id)
