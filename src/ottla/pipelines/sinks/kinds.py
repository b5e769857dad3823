"""The kinds of sinks, and what may be asked of any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import (
    CurrentTableSink,
    DeltaSink,
    FileSink,
    JdbcSink,
    Sink,
    Source,
    TopicSink,
)
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.sinks.contract import SinkKind
from ottla.pipelines.sinks.current_table import CurrentTables
from ottla.pipelines.sinks.delta import DeltaTables
from ottla.pipelines.sinks.files import Files
from ottla.pipelines.sinks.jdbc import Databases
from ottla.pipelines.sinks.topic import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS: Final[Mapping[type[Sink], SinkKind[Any]]] = {
    TopicSink: Topics(),
    FileSink: Files(),
    CurrentTableSink: CurrentTables(),
    JdbcSink: Databases(),
    DeltaSink: DeltaTables(),
}


def sink_kind(sink: Sink) -> SinkKind[Any]:
    return KINDS[type(sink)]


def sink_problems(sink: Sink, frame: DataFrame, sources: Sequence[Source] = ()) -> list[Problem]:
    """What can be said about a sink before it is written to; `frame` may be without data."""
    return sink_kind(sink).problems(sink, frame, sources)
