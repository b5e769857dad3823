"""Which columns a sink writes, and of several rows with the same key the newest."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from ottla.pipelines.model import (
    MESSAGE_COLUMNS,
    CurrentTableSink,
    DeltaSink,
    FileSink,
    Sink,
    TopicSink,
)
from ottla.pipelines.problems import Problem
from ottla.pipelines.sql_errors import sentence

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Of the message, not of its value: SQL sees them, sinks do not write them.
NOT_WRITTEN: Final = frozenset((*MESSAGE_COLUMNS, "_headers"))
DEFAULT_ORDER: Final = "_offset"

# True in rows that remove theirs. No view has a column of this name.
DELETED: Final = "ottla deleted"


def quote(name: str) -> str:
    """A column's name for Spark, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def written_columns(sink: Sink, columns: Sequence[str]) -> list[str]:
    """All but those of the message, of which a key or a partition may ask for its own."""
    asked: set[str] = set()
    if not isinstance(sink, TopicSink):
        asked.update(sink.key)
    if isinstance(sink, FileSink | DeltaSink):
        asked.update(sink.partition_by)
    return [name for name in columns if name not in NOT_WRITTEN or name in asked]


def is_upsert(sink: Sink) -> bool:
    return sink.mode == "upsert" or isinstance(sink, CurrentTableSink)


def order_of(sink: Sink, columns: Sequence[str]) -> str | None:
    """The column that tells which of two rows is newer; None where a key comes only once."""
    if sink.order is not None:
        return sink.order
    return DEFAULT_ORDER if DEFAULT_ORDER in columns else None


def stored_order(sink: Sink, columns: Sequence[str]) -> str | None:
    """The order, if rows are stored with it: then it also holds against rows of earlier batches.

    Offsets are not stored (as no column of the message is), and need not be: batches come in their
    order.
    """
    order = order_of(sink, columns)
    return order if order in written_columns(sink, columns) else None


def changes(frame: DataFrame, sink: Sink) -> DataFrame:
    """The newest row of each key, as it is to be written, and whether it removes the key's row."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    order = order_of(sink, frame.columns)
    newest_first = F.lit(0) if order is None else F.col(quote(order)).desc_nulls_last()
    same_key = Window.partitionBy(*map(quote, sink.key)).orderBy(newest_first)
    deleted = F.lit(False) if sink.delete is None else F.coalesce(F.expr(sink.delete), F.lit(False))
    rank = "ottla rank"
    newest = frame.withColumn(DELETED, deleted).withColumn(rank, F.row_number().over(same_key))
    written = written_columns(sink, frame.columns)
    columns = [_present(sink, name) if name in sink.key else F.col(quote(name)) for name in written]
    return newest.where(F.col(quote(rank)) == 1).select(*columns, quote(DELETED))


def _present(sink: Sink, name: str) -> Column:
    """A row without a key can be neither found nor replaced, so it is not let in."""
    from pyspark.sql import functions as F  # noqa: N812

    line = (
        f"sink {sink.name}: a row has no key ({name} is null); leave such rows out in a view "
        f"(WHERE {quote(name)} IS NOT NULL)"
    )
    return F.coalesce(F.col(quote(name)), F.raise_error(F.lit(line))).alias(name)


def upsert_problems(sink: Sink, frame: DataFrame) -> list[Problem]:
    """What cannot be right about key, order and delete, given the columns of the frame."""
    from pyspark.errors import AnalysisException, ParseException

    found = column_problems(sink, "key", sink.key, frame)
    if not is_upsert(sink):
        return found
    if not sink.key:
        found.append(problem(sink, "upserts need a key: name the columns that tell rows apart"))
    if sink.order is not None:
        found += column_problems(sink, "order", (sink.order,), frame)
    if sink.delete is not None:
        try:
            frame.where(sink.delete)
        except (AnalysisException, ParseException) as wrong:
            text = f"delete: {sink.delete!r} is no condition: {sentence(wrong)}"
            found.append(problem(sink, text))
    return found


def column_problems(sink: Sink, what: str, names: Sequence[str], frame: DataFrame) -> list[Problem]:
    found = []
    for name in names:
        if name not in frame.columns:
            near = get_close_matches(name, frame.columns, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(frame.columns)}"
            text = f"{what}: {sink.input} has no column {name}; {hint}"
            found.append(problem(sink, text))
    return found


def problem(sink: Sink, text: str) -> Problem:
    return Problem(f"sink {sink.name}: {text}", sink.place)
