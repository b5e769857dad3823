"""The time of rows: watermarks, and duplicates within them, for sources and views alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.pipelines.language.model import Source, View
from ottla.pipelines.language.problems import BadPipeline, Problem
from ottla.pipelines.views.columns import column_type, is_comparable, no_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def time_problems(what: Source | View, frame: DataFrame) -> list[Problem]:
    """What is wrong with the columns that watermark and deduplicate name."""
    found: list[Problem] = []

    def tell(text: str) -> None:
        found.append(Problem(f"{what.subject}: {text}", what.place))

    if what.watermark is not None:
        kind = column_type(frame, what.watermark.column)
        if kind is None:
            tell(f"watermark: {no_column(frame, what.watermark.column)}")
        elif not _is_time(kind):
            tell(
                f"watermark: {what.watermark.column} is {kind.simpleString()}; it must be a "
                "timestamp: change the schema, or CAST it in a view and put the watermark there"
            )
    for name in what.deduplicate:
        kind = column_type(frame, name)
        if kind is None:
            tell(f"deduplicate: {no_column(frame, name)}")
        elif not is_comparable(kind):
            tell(f"deduplicate: {name} is {kind.simpleString()}, which Spark cannot compare")
    return found


def timed(frame: DataFrame, what: Source | View) -> DataFrame:
    """With its watermark, and each row once among those that the watermark still waits for."""
    from pyspark.errors import PySparkException

    columns = list(what.deduplicate)
    if columns and frame.isStreaming and what.watermark is None:
        raise _bad_time(
            what,
            "deduplicate needs a watermark, which says for how long rows are remembered: "
            "add watermark: {column: …, delay: 10 minutes}",
        )
    try:
        if what.watermark is not None:
            frame = frame.withWatermark(what.watermark.column, what.watermark.delay)
        if columns:
            # A table has no end to wait for, and Spark no such operation for it.
            frame = (
                frame.dropDuplicatesWithinWatermark(columns)
                if frame.isStreaming
                else frame.dropDuplicates(columns)
            )
    except PySparkException as wrong:
        raise _bad_time(what, f"watermark or deduplicate: {_first_line(wrong)}") from wrong
    return frame


def _is_time(kind: DataType) -> bool:
    """A timestamp, or the window that a view has made of one."""
    return kind.simpleString() in ("timestamp", "struct<start:timestamp,end:timestamp>")


def _bad_time(what: Source | View, text: str) -> BadPipeline:
    return BadPipeline([Problem(f"{what.subject}: {text}", what.place)])


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
