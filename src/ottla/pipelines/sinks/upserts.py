"""Upserts: of several rows with the same key the newest, and what removes it.

What is newer is told by the row's sequence: one declared column, or the row's place in its topic.
A place compares by offset within a partition and by time across partitions. So that there is one
order and no circle, the time that counts is the greatest which the key has had in that partition
up to this offset: clocks of producers go back, offsets do not.

Sequences are kept for every key, also for those that were removed, so that the same rule holds
against rows of earlier batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Sink, Source, TableSink, TopicSource
from ottla.pipelines.language.problems import PipelineFailed, Problem
from ottla.pipelines.sinks.written_columns import (
    column_problems,
    problem,
    type_problems,
    written_columns,
)
from ottla.pipelines.views.columns import is_comparable, quote
from ottla.pipelines.views.spark_errors import sentence

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

# A row's place in its topic.
PLACE: Final = ("_timestamp", "_partition", "_offset")
TOMBSTONE: Final = "_tombstone"

# Columns of ours beside the view's, none of which has such a name: where a row stands in the
# sequence of its key, whether it removes it and since when, and which batch brought it.
SEQUENCE: Final = "_ottla_sequence"
DELETED: Final = "_ottla_deleted"
DELETED_AT: Final = "_ottla_deleted_at"
ARRIVAL: Final = "_ottla_arrival"
# Of tables of type 2, in the words of AUTO CDC: from where to where in the sequence a row holds.
START: Final = "__START_AT"
END: Final = "__END_AT"
_RANK: Final = "_ottla_rank"


def sequence_of(sink: TableSink, columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that tell which of two rows is newer; none where the later batch has it."""
    if sink.sequence_by is not None:
        return (sink.sequence_by,)
    return PLACE if set(PLACE) <= set(columns) else ()


def changes(frame: DataFrame, sink: TableSink) -> DataFrame:
    """The newest row of each key as it is to be written, with SEQUENCE and DELETED.

    By place in the topic: the newest of each key and partition, since only what is stored can tell
    which of them is the newest of all. For tables of type 2: one row of each key and sequence.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    rows, names = events(frame, sink), sequence_of(sink, frame.columns)
    same = [*map(quote, sink.keys)]
    if names != PLACE:
        ties = [F.col(quote(name)).desc_nulls_last() for name in _ties(frame, sink)]
        sequence = F.col(quote(SEQUENCE)).desc()
        if sink.stored_as_scd_type == 2:
            once = same_event(rows, sink, *ties)
        else:
            once = _first(rows, Window.partitionBy(*same).orderBy(sequence, *ties))
        return once.select(*map(quote, _written(sink, frame)))
    at = {name: F.col(quote(SEQUENCE)).getField(name) for name in PLACE}
    partition = Window.partitionBy(*same, at["_partition"])
    greatest = F.max(at["_timestamp"]).over(partition).alias("_timestamp")
    place = F.struct(greatest, at["_partition"], at["_offset"])
    last = _first(rows.withColumn(SEQUENCE, place), partition.orderBy(at["_offset"].desc()))
    return last.select(*map(quote, _written(sink, frame)))


def events(frame: DataFrame, sink: TableSink) -> DataFrame:
    """Each row, with SEQUENCE and DELETED, and the columns of its message for ties."""
    from pyspark.sql import functions as F  # noqa: N812

    names = sequence_of(sink, frame.columns)
    numbers = [_present(sink, "sequence", name) for name in names] or [F.lit(0).alias("none")]
    deletes = sink.apply_as_deletes or (TOMBSTONE if TOMBSTONE in frame.columns else "false")
    written = written_columns(sink, frame.columns)
    columns = [
        _present(sink, "key", name) if name in sink.keys else F.col(quote(name)) for name in written
    ]
    ties = [name for name in PLACE if name in frame.columns and name not in written]
    return frame.select(
        *columns,
        *map(quote, ties),
        F.struct(*numbers).alias(SEQUENCE),
        F.coalesce(F.expr(deletes), F.lit(False)).alias(DELETED),
    )


def _ties(frame: DataFrame, sink: TableSink) -> list[str]:
    """What decides between rows of one sequence in a batch, so that it is the same each time."""
    names = [DELETED, *(name for name in PLACE if name in frame.columns)]
    written = written_columns(sink, frame.columns)
    names += [one for one in written if is_comparable(frame.schema[one].dataType)]
    return list(dict.fromkeys(names))


def _written(sink: TableSink, frame: DataFrame) -> list[str]:
    return [*written_columns(sink, frame.columns), SEQUENCE, DELETED]


def newest(rows: DataFrame, sink: TableSink, names: tuple[str, ...]) -> DataFrame:
    """Of changes that came one after the other (ARRIVAL) the one that each key is left with."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    same = [*map(quote, sink.keys)]
    arrival, sequence = F.col(quote(ARRIVAL)), F.col(quote(SEQUENCE))
    # Both windows below are then of one shuffle.
    rows = rows.repartition(*same)
    if names == PLACE:
        at = {name: sequence.getField(name) for name in PLACE}
        until_now = (
            Window.partitionBy(*same, at["_partition"])
            .orderBy(at["_offset"], arrival)
            .rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
        greatest = F.max(at["_timestamp"]).over(until_now).alias("_timestamp")
        rows = rows.withColumn(SEQUENCE, F.struct(greatest, at["_partition"], at["_offset"]))
    newest_first = (sequence.desc_nulls_last(), arrival.desc())
    return _first(rows, Window.partitionBy(*same).orderBy(*newest_first))


def same_event(rows: DataFrame, sink: TableSink, *order: Column) -> DataFrame:
    """Of rows of one key and sequence the first by this order."""
    from pyspark.sql import Window

    same = map(quote, (*sink.keys, SEQUENCE))
    return _first(rows, Window.partitionBy(*same).orderBy(*order))


def _first(rows: DataFrame, window: WindowSpec) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    ranked = rows.withColumn(_RANK, F.row_number().over(window))
    return ranked.where(F.col(quote(_RANK)) == 1).drop(_RANK)


def _present(sink: Sink, what: str, name: str) -> Column:
    """A row without a key can be neither found nor replaced, so it is not let in; and so on."""
    from pyspark.sql import functions as F  # noqa: N812

    line = (
        f"sink {sink.name}: a row has no {what} ({name} is null); leave such rows out in a view "
        f"(WHERE {quote(name)} IS NOT NULL)"
    )
    return F.coalesce(F.col(quote(name)), F.raise_error(F.lit(line))).alias(name)


def remembered(stored: DataFrame, sink: TableSink, names: Sequence[str], where: str) -> DataFrame:
    """Stored sequences, without tombstones that have lived their time."""
    from pyspark.sql import functions as F  # noqa: N812

    before = [name for name, _ in stored.select(f"{SEQUENCE}.*").dtypes]
    if before != list(names):
        raise PipelineFailed(
            f"sink {sink.name}: {where} was sequenced by {', '.join(before)} so far, and now by "
            f"{', '.join(names)}, which cannot be compared; write to another table, or take back "
            "the change"
        )
    gone = F.col(quote(DELETED_AT))
    oldest = F.current_timestamp() - F.make_dt_interval(secs=F.lit(sink.tombstone_life_s))
    return stored.where(gone.isNull() | (gone >= oldest))


def told_by_rows(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """SEQUENCE of a table from before there were any, where its columns tell it; else null."""
    from pyspark.sql import functions as F  # noqa: N812

    if not names or not set(names) <= set(rows.columns):
        return rows
    return rows.withColumn(SEQUENCE, F.struct(*(F.col(quote(name)) for name in names)))


def upsert_problems(sink: TableSink, frame: DataFrame, sources: Sequence[Source]) -> list[Problem]:
    """What cannot be right about keys, sequence and deletes, given the columns of the frame."""
    from pyspark.errors import AnalysisException, ParseException

    found = column_problems(sink, "keys", sink.keys, frame)
    if sink.upserted is None:
        return found
    if not sink.keys:
        found.append(problem(sink, "upserts need keys: name the columns that tell rows apart"))
    found += _sequence_problems(sink, frame, sources)
    if sink.apply_as_deletes is not None:
        try:
            frame.where(sink.apply_as_deletes)
        except (AnalysisException, ParseException) as wrong:
            given = repr(sink.apply_as_deletes)
            text = f"apply_as_deletes: {given} is no condition: {sentence(wrong)}"
            found.append(problem(sink, text))
    same = "Spark cannot tell two of these apart, name another column"
    found += type_problems(sink, "keys", sink.keys, frame, is_comparable, same)
    greater = "Spark cannot tell which of two is greater, name another column"
    by = () if sink.sequence_by is None else (sink.sequence_by,)
    found += type_problems(sink, "sequence_by", by, frame, is_comparable, greater)
    return found


def lacks_sequence(sink: Sink, frame: DataFrame) -> bool:
    """Whether nothing tells which of two rows of a key is newer, and nothing was said about it."""
    table = sink.upserted
    if table is None or "_offset" in frame.columns:
        return False
    return not sequence_of(table, frame.columns)


def rows_identity(sink: TableSink) -> dict[str, Any]:
    """What names a row, and what tells which is newer: stored rows were compared by it."""
    named: dict[str, Any] = {"key": list(sink.keys)}
    if sink.sequence_by is not None:
        named["sequence_by"] = sink.sequence_by
    if sink.stored_as_scd_type != 1:
        named["scd_type"] = f"of type {sink.stored_as_scd_type}"
    return named


def _sequence_problems(
    sink: TableSink, frame: DataFrame, sources: Sequence[Source]
) -> list[Problem]:
    taken = [name for name in (START, END) if name in frame.columns]
    if sink.stored_as_scd_type == 2 and taken:
        text = (
            f"{sink.input} has a column {taken[0]}, which a table of type 2 has itself; rename it"
        )
        return [problem(sink, text)]
    if sink.stored_as_scd_type == 2 and sink.sequence_by is None:
        text = (
            "stored_as_scd_type: 2 needs sequence_by: a column that tells which of two rows is "
            "newer, and whose values become __START_AT and __END_AT"
        )
        return [problem(sink, text)]
    if sink.sequence_by == "_offset":
        text = (
            "sequence_by: _offset: offsets of two partitions cannot be compared; leave sequence_by "
            f"out and let {sink.input} have {', '.join(PLACE)} (or, for a topic that will always "
            "have one partition, give _offset a name of its own in a view)"
        )
        return [problem(sink, text)]
    if sink.sequence_by is not None:
        return column_problems(sink, "sequence_by", (sink.sequence_by,), frame)
    lacking = [name for name in PLACE if name not in frame.columns]
    if lacking and "_offset" in frame.columns:
        text = (
            f"by _offset alone rows of two partitions cannot be compared; let {sink.input} have "
            f"{' and '.join(lacking)} too, or name a column by sequence_by"
        )
        return [problem(sink, text)]
    topics = dict.fromkeys(
        topic for one in sources if isinstance(one, TopicSource) for topic in one.topics
    )
    if not lacking and len(topics) > 1:
        text = (
            f"{sink.input} comes of several topics ({', '.join(topics)}), whose offsets cannot be "
            "compared; name a column by sequence_by that tells which of two rows is newer"
        )
        return [problem(sink, text)]
    return []
