"""From records to the rows that SQL sees: the good ones, in time, each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.pipelines.language.model import Source
from ottla.pipelines.language.problems import BadPipeline
from ottla.pipelines.sources.bad_records import bad_rows, good_rows
from ottla.pipelines.views.event_time import time_problems, timed
from ottla.pipelines.views.graph import Opened

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def _as_they_are(rows: DataFrame) -> DataFrame:
    return rows


def opened(
    decoded: DataFrame,
    source: Source,
    *,
    place: Column | None = None,
    columns: Callable[[DataFrame], DataFrame] = _as_they_are,
) -> Opened:
    """Splits good from bad as the source wants it; observes, sets watermark, removes duplicates.

    Where `decoded` has `_error`, `place` is the text that says where a row comes from. `columns`
    makes of the good rows what SQL sees.
    """
    frame = columns(good_rows(decoded, source, place))
    problems = time_problems(source, frame)
    if problems:
        raise BadPipeline(problems)
    return Opened(timed(frame, source), bad_rows(decoded))


def fields(frame: DataFrame, column: str) -> str:
    """What to select: the fields of a struct, or the column itself."""
    return f"{column}.*" if frame.schema[column].dataType.typeName() == "struct" else column
