"""What a view gives in a test: the rows that its sink would have got, or would hold at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ottla.pipelines.cases.row_files import BadCase
from ottla.pipelines.language.keys import BAD_SUFFIX
from ottla.pipelines.language.model import Pipeline, Sink, TableSink
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.sinks import history
from ottla.pipelines.sinks.upserts import (
    ARRIVAL,
    DELETED,
    END,
    START,
    changes,
    newest,
    sequence_of,
)
from ottla.pipelines.sinks.written_columns import written_columns
from ottla.pipelines.views.columns import quote
from ottla.spark.formats.spark_types import BadSchema, parse_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

EPOCH: Final = "1970-01-01T00:00:00.000Z"

Row = dict[str, Any]


def sink_for(pipeline: Pipeline, name: str) -> Sink | None:
    """The sink whose mode counts: the first in the file that takes this view or source."""
    return next((sink for sink in pipeline.sinks.values() if sink.input == name), None)


class Result:
    """The rows of a view, collected batch by batch."""

    def __init__(self, name: str, frame: DataFrame, sink: Sink | None) -> None:
        self.name = name
        self._sink = sink
        # The table that is upserted, if it is one.
        self._table = None if sink is None else sink.upserted
        self._changes: list[pa.Table] = []
        self._is_bad = name.endswith(BAD_SUFFIX)
        self._frame, columns = _comparable(name, frame)
        self.kind = self._compared(columns)
        self._query: StreamingQuery | None = None
        self._batches: list[list[Row]] = []
        self._mode = "append"

    def _compared(self, columns: pa.DataType) -> pa.DataType:
        if self._is_bad:
            return pa.struct([pa.field("value", pa.string()), pa.field("reason", pa.string())])
        if self._table is not None:
            names = written_columns(self._table, self._frame.columns)
            kept = [field for field in columns if field.name in names]
            if self._table.stored_as_scd_type == 2:
                by = columns.field(self._table.sequence_by).type
                kept += [pa.field(START, by), pa.field(END, by)]
            return pa.struct(kept)
        return columns

    @property
    def optional(self) -> tuple[str, ...]:
        """Why a record is bad need not be told to the letter."""
        return ("reason",) if self._is_bad else ()

    def start(self, checkpoint: Path) -> None:
        from pyspark.errors import AnalysisException

        if not self._frame.isStreaming:
            return
        errors: list[AnalysisException] = []
        for mode in self._modes():
            try:
                self._start(mode, checkpoint / mode)
                return
            except AnalysisException as error:
                errors.append(error)
        raise errors[0]

    def _modes(self) -> Sequence[str]:
        """Spark's output modes to be tried: what it cannot do it says before a query starts."""
        if self._table is not None:
            # The same for a query without aggregation, and only the second one takes outer joins.
            return ("update", "append")
        if self._sink is None or self._is_bad:
            # Nobody says how an aggregation within the pipeline is used: its last result counts.
            return ("append", "complete")
        return (self._sink.mode,)

    def _start(self, mode: str, checkpoint: Path) -> None:
        writer = self._frame.writeStream.outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(checkpoint))
        self._query = writer.foreachBatch(self._keep).start()
        self._mode = mode

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def rows(self, deadline: float) -> list[Row]:
        """All of them, when the last batch is done; raises what the query raised."""
        if self._query is None:
            self._keep(self._frame, 0)
        elif not self._query.awaitTermination(max(int(deadline - time.monotonic()), 1)):
            self._query.stop()
            raise BadCase([Problem(f"{self.name}: still running after too long; give fewer rows")])
        if self._table is not None:
            return self._held(self._table)
        if self._mode == "complete":
            return self._batches[-1] if self._batches else []
        return [row for batch in self._batches for row in batch]

    def hint(self) -> str | None:
        """Where rows are missing that only wait for the watermark."""
        progress = None if self._query is None else self._query.lastProgress
        at = progress.eventTime.get("watermark") if progress is not None else None
        if self._mode != "append" or at is None:
            return None
        if at == EPOCH:
            return "the watermark has not moved: no row with a time has come from each source"
        return (
            f"the watermark ended at {at}; rows that wait for a later one are not out yet "
            "(give one more row with a later time)"
        )

    def _keep(self, frame: DataFrame, batch_id: int) -> None:
        if self._table is not None:
            self._changes.append(changes(frame, self._table).toArrow())
            return
        rows: list[Row] = frame.toArrow().to_pylist(maps_as_pydicts="strict")
        if self._is_bad:
            for row in rows:
                row["value"] = None if row["value"] is None else _text(row["value"])
        self._batches.append(rows)

    def _held(self, table: TableSink) -> list[Row]:
        """What the table of an upsert holds after the last batch."""
        if not self._changes:
            return []
        arrived = [
            changed.append_column(ARRIVAL, pa.array([at] * len(changed), pa.int64()))
            for at, changed in enumerate(self._changes)
        ]
        rows = self._frame.sparkSession.createDataFrame(pa.concat_tables(arrived))
        names = written_columns(table, self._frame.columns)
        if table.stored_as_scd_type == 2:
            latest = history.told_anew(rows, table)
            names += [START, END]
        else:
            latest = newest(rows, table, sequence_of(table, self._frame.columns))
        there = latest.where(f"NOT {quote(DELETED)}").select(*map(quote, names))
        held: list[Row] = there.toArrow().to_pylist(maps_as_pydicts="strict")
        return held


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _comparable(name: str, frame: DataFrame) -> tuple[DataFrame, pa.DataType]:
    """The frame and its columns as Arrow's; a type that no file can hold is compared as text."""
    twice = {column for column in frame.columns if frame.columns.count(column) > 1}
    if twice:
        names = ", ".join(sorted(twice))
        raise BadCase([Problem(f"{name} has several columns called {names}; rename them with AS")])
    fields: list[pa.Field] = []
    columns: list[Column] = []
    for field in frame.schema.fields:
        column = frame[quote(field.name)]
        try:
            kind = parse_type(f'{{"type":"struct","fields":[{field.json()}]}}').field(0).type
        except BadSchema:
            column, kind = column.cast("string").alias(field.name), pa.string()
        columns.append(column)
        fields.append(pa.field(field.name, kind))
    return frame.select(*columns), pa.struct(fields)
