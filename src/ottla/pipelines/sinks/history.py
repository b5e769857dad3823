"""Tables of type 2: every version of a row, with where in the sequence it begins and ends.

Each event that is not a delete is one row. It ends where the next event of its key begins, be that
a row or a delete. So the rows tell all events again, but for deletes that end no row: those are
kept beside. Whatever comes late is put among these events, and the ends are told anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.pipelines.language.model import TableSink
from ottla.pipelines.sinks.upserts import (
    ARRIVAL,
    DELETED,
    DELETED_AT,
    END,
    SEQUENCE,
    START,
    same_event,
)
from ottla.pipelines.views.columns import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# True in deletes that end no row.
_ENDS_NOTHING: Final = "_ottla_ends_nothing"


def events_of(history: DataFrame, sink: TableSink) -> DataFrame:
    """What the rows of a table tell of its events."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    assert sink.sequence_by is not None
    keys = [*map(quote, sink.keys)]
    start, end = F.col(START), F.col(END)
    following = F.lead(start).over(Window.partitionBy(*keys).orderBy(start))
    is_delete = end.isNotNull() & ~following.eqNullSafe(end)
    never = F.lit(None).cast("timestamp").alias(DELETED_AT)
    told = history.withColumn(DELETED, is_delete)
    by = sink.sequence_by
    columns = [quote(name) for name in history.columns if name not in (START, END)]
    rows = told.select(
        *columns, F.struct(start.alias(by)).alias(SEQUENCE), F.lit(False).alias(DELETED), never
    )
    deletes = told.where(DELETED).select(
        *keys, F.struct(end.alias(by)).alias(SEQUENCE), DELETED, never
    )
    return rows.unionByName(deletes, allowMissingColumns=True)


def told_anew(events: DataFrame, sink: TableSink) -> DataFrame:
    """The events (with ARRIVAL), one of each sequence, with START and END.

    Of two events of one sequence the one that was there first stays.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    keys = [*map(quote, sink.keys)]
    sequence = F.col(quote(SEQUENCE))
    once = same_event(events.repartition(*keys), sink, F.col(ARRIVAL).asc())
    in_order = Window.partitionBy(*keys).orderBy(sequence)
    start = sequence.getField(sink.sequence_by)
    return once.select(
        "*",
        start.alias(START),
        F.lead(start).over(in_order).alias(END),
        F.coalesce(F.lag(F.col(DELETED)).over(in_order), F.lit(True)).alias(_ENDS_NOTHING),
    ).drop(ARRIVAL)


def rows_of(told: DataFrame) -> DataFrame:
    """The table, as people see it."""
    return told.where(f"NOT {DELETED}").drop(SEQUENCE, DELETED, DELETED_AT, _ENDS_NOTHING)


def kept_beside(told: DataFrame, sink: TableSink) -> DataFrame:
    """What the rows do not tell."""
    from pyspark.sql import functions as F  # noqa: N812

    unknown = told.where(f"{DELETED} AND {_ENDS_NOTHING}")
    # A delete that ended a row, until an earlier one came, begins its life now.
    since = F.coalesce(F.col(DELETED_AT), F.current_timestamp()).alias(DELETED_AT)
    return unknown.select(*map(quote, (*sink.keys, SEQUENCE)), since)
