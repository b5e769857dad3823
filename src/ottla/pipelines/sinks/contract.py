"""What a kind of sink can do. A new kind is a file beside this one, and a line in `kinds.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla.pipelines.jars import Jar
from ottla.pipelines.language.model import Pipeline, Sink, Source
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.sinks.batches import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Kind = TypeVar("Kind", bound=Sink, contravariant=True)


class SinkKind(Protocol[Kind]):
    def problems(self, sink: Kind, frame: DataFrame, sources: Sequence[Source]) -> list[Problem]:
        """What can be said from the columns of the frame, and from what its flow reads."""

    def identity(self, sink: Kind, secrets: frozenset[str]) -> dict[str, Any]:
        """What is written to, as checkpoints note it: another is another sink to them."""

    def write_batch(self, rows: DataFrame, pipeline: Pipeline, sink: Kind, batch: Batch) -> None:
        """A batch as a whole, or all rows of a run without streams."""

    def stream_writer(
        self, frame: DataFrame, pipeline: Pipeline, sink: Kind, mode: str
    ) -> DataStreamWriter | None:
        """Where Spark can write the stream by itself; None: each batch goes to `write_batch`."""
        return None

    def needed_jar(self, sink: Kind, spark_version: str) -> Jar | None:
        return None
