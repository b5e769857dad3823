"""Which columns a sink writes, and what is wrong with those that it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.pipelines.language.model import MESSAGE_COLUMNS, DeltaSink, FileSink, Sink
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.views.columns import column_type, is_plain
from ottla.spark.spelling import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

# Of the message, not of its value: SQL sees them, sinks do not write them.
NOT_WRITTEN: Final = frozenset((*MESSAGE_COLUMNS, "_headers"))


def written_columns(sink: Sink, columns: Sequence[str]) -> list[str]:
    """All but those of the message, of which a key or a partition may ask for its own."""
    asked = sink.named_columns
    return [name for name in columns if name not in NOT_WRITTEN or name in asked]


def problem(sink: Sink, text: str) -> Problem:
    return Problem(f"{sink.subject}: {text}", sink.place)


def column_problems(sink: Sink, what: str, names: Sequence[str], frame: DataFrame) -> list[Problem]:
    """Of columns that are not there."""
    return [
        problem(
            sink,
            f"{what}: {sink.input} has no column {name}"
            + (nearest(name, frame.columns) or f"; there are {', '.join(frame.columns)}"),
        )
        for name in names
        if name not in frame.columns
    ]


def type_problems(
    sink: Sink,
    what: str,
    names: Sequence[str],
    frame: DataFrame,
    is_fit: Callable[[DataType], bool],
    advice: str,
) -> list[Problem]:
    """Of columns that are there, but are of no use for what they are named for."""
    kinds = {name: column_type(frame, name) for name in names}
    return [
        problem(sink, f"{what}: {name} is {kind.simpleString()}; {advice}")
        for name, kind in kinds.items()
        if kind is not None and not is_fit(kind)
    ]


def partition_problems(sink: FileSink | DeltaSink, frame: DataFrame) -> list[Problem]:
    """Of the columns that become directories."""
    names, what = sink.partition_by, "partition_by"
    advice = "a directory cannot be named after it, choose another"
    return [
        *column_problems(sink, what, names, frame),
        *type_problems(sink, what, names, frame, is_plain, advice),
    ]
