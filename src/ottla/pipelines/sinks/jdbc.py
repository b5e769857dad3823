"""Rows into a table of PostgreSQL, each batch once and at once.

Spark writes a batch into a staging table. One transaction then merges it into the table, notes in
`ottla_batches` that this batch is done, and drops the staging table. A batch that comes again
finds the note and does nothing; readers see all of a batch or nothing of it.

Upserts keep the sequence of each key, removed ones too, in a table beside (`ottla_sequences_…`,
whose comment says of which): what is older than that is not merged.
"""

from __future__ import annotations

import hashlib
import secrets as random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from ottla.pipelines.jars import Jar, jdbc_driver
from ottla.pipelines.language.model import JdbcSink, Pipeline, Source
from ottla.pipelines.language.problems import PipelineFailed, Problem
from ottla.pipelines.language.secrets import redact
from ottla.pipelines.sinks import postgres_sql as sql
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.contract import SinkKind
from ottla.pipelines.sinks.database import (
    TIMEOUTS,
    Database,
    DatabaseFailed,
    failure,
    is_of_database,
)
from ottla.pipelines.sinks.postgres_history import Deletes, History
from ottla.pipelines.sinks.upserts import (
    DELETED,
    END,
    PLACE,
    SEQUENCE,
    START,
    changes,
    rows_identity,
    sequence_of,
    upsert_problems,
)
from ottla.pipelines.sinks.written_columns import problem, written_columns
from ottla.pipelines.views.columns import quote
from ottla.spark.spelling import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVER: Final = "org.postgresql.Driver"
POSTGRES: Final = "jdbc:postgresql:"
# Each partition of a batch is written through a connection of its own.
CONNECTIONS_MAX: Final = 16
LOCK_TIMEOUT: Final = "60s"
_NO_UNIQUE_INDEX: Final = "42P10"

Step = Callable[[str], None]


class Databases(SinkKind[JdbcSink]):
    def problems(
        self, sink: JdbcSink, frame: DataFrame, sources: Sequence[Source]
    ) -> list[Problem]:
        return [*upsert_problems(sink, frame, sources), *_table_problems(sink, frame)]

    def identity(self, sink: JdbcSink, secrets: frozenset[str]) -> dict[str, Any]:
        url = redact(sink.url, secrets)
        return {"kind": "jdbc", "url": url, "table": sink.table, **rows_identity(sink)}

    def write_batch(
        self, rows: DataFrame, pipeline: Pipeline, sink: JdbcSink, batch: Batch
    ) -> None:
        write(rows, pipeline, sink, batch)

    def needed_jar(self, sink: JdbcSink, spark_version: str) -> Jar | None:
        return jdbc_driver(sink.url, sink.options)


def _table_problems(sink: JdbcSink, frame: DataFrame) -> list[Problem]:
    found = []
    if not sink.url.startswith(POSTGRES):
        kind = sink.url.removeprefix("jdbc:").split(":", 1)[0]
        text = f"{kind} cannot be written to; JDBC sinks are for PostgreSQL ({POSTGRES}//host/db)"
        found.append(problem(sink, text))
    names = dict.fromkeys(written_columns(sink, frame.columns))
    if sink.mode == "upsert":
        known = (one for one in sequence_of(sink, frame.columns) if one in frame.columns)
        names.update(dict.fromkeys(known))
    for name in names:
        kind_of_column = frame.schema[name].dataType
        if sql.column_type(kind_of_column) is None:
            text = (
                f"{name} is {kind_of_column.simpleString()}, which has no place in a table; "
                "make it text in a view, for example by to_json"
            )
            found.append(problem(sink, text))
    return found


def write(
    frame: DataFrame,
    pipeline: Pipeline,
    sink: JdbcSink,
    batch: Batch,
    *,
    step: Step = lambda _: None,
) -> None:
    """Raises PipelineFailed in one line. `step` hears what comes next, for tests."""
    try:
        with connect(frame.sparkSession, pipeline, sink) as database:
            _Write(database, pipeline, sink, batch).run(frame, step)
    except DatabaseFailed as error:
        raise PipelineFailed(f"sink {sink.name}: {error}") from None


def connect(spark: SparkSession, pipeline: Pipeline, sink: JdbcSink) -> Database:
    return Database.connect(spark, DRIVER, sink.url, _properties(sink), _secrets(pipeline, sink))


def _properties(sink: JdbcSink) -> dict[str, str]:
    login = {"user": sink.user, "password": sink.password}
    return {**sink.options, **{name: value for name, value in login.items() if value is not None}}


def _secrets(pipeline: Pipeline, sink: JdbcSink) -> frozenset[str]:
    return pipeline.secrets | {sink.password or ""}


@dataclass(frozen=True)
class _Write:
    """One batch, through one connection.

    That it is one is part of the promise: the staging table does not outlive a crash of the
    database, and neither does the connection.
    """

    database: Database
    pipeline: Pipeline
    sink: JdbcSink
    batch: Batch

    def run(self, frame: DataFrame, step: Step) -> None:
        step("prepare")
        target = self._target(frame)
        upsert = self.sink.mode == "upsert"
        sequences = self._sequences(target, frame) if upsert else None
        if not self._prepare(target, sequences):
            return
        columns = written_columns(self.sink, frame.columns)
        staging = f"{sql.sql_name(target.schema)}.{self._prefix()}{random.token_hex(4)}"
        types = [sql.column_type(frame.schema[name].dataType) or "" for name in columns]
        numbers = sequences.types if sequences else ()
        step("stage")
        self.database.run(sql.create_staging(staging, types, with_deletes=upsert, sequence=numbers))
        self.database.commit()
        step("fill")
        self._fill(frame, columns, sequences, staging)
        step("merge")
        keys = [target.column(one) or one for one in self.sink.keys] if upsert else []
        named = [target.column(one) or one for one in columns]
        is_cast = any(target.types[one] != types[named.index(one)] for one in keys)
        self._merge(sql.Merge(target, staging, named, keys, is_cast), sequences, step)
        step("end")

    def _sequences(self, target: sql.Target, frame: DataFrame) -> sql.Sequences | None:
        names = sequence_of(self.sink, frame.columns)
        if not names:
            return None
        types = {one: sql.column_type(frame.schema[one].dataType) or "" for one in names}
        kind = Deletes if self._is_history else sql.Sequences
        return kind(target, [target.column(one) or one for one in self.sink.keys], types)

    @property
    def _is_history(self) -> bool:
        return self.sink.mode == "upsert" and self.sink.stored_as_scd_type == 2

    def _target(self, frame: DataFrame) -> sql.Target:
        """The table as it is, which must have a column for each of ours."""
        parts = sql.table_parts(self.sink.table)
        for names in (parts, [part.lower() for part in parts]):
            name = ".".join(map(sql.sql_name, names))
            found = self.database.rows(
                "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = c.relnamespace WHERE c.oid = to_regclass(?)",
                name,
            )
            if found:
                break
        columns = written_columns(self.sink, frame.columns)
        types = {one: sql.column_type(frame.schema[one].dataType) or "" for one in columns}
        keys = list(self.sink.keys)
        if self._is_history:
            by = sql.column_type(frame.schema[self.sink.sequence_by or ""].dataType) or ""
            types |= {START: by, END: by}
            keys.append(START)
        if not found:
            create = sql.create_target(self.sink.table, types, keys)
            raise DatabaseFailed(f"there is no table {self.sink.table}; create it: {create}")
        has = self.database.rows(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            name,
        )
        schema, table = found[0]
        target = sql.Target(schema, table, {row[0]: sql.cast_type(row[1]) for row in has})
        for one in types:
            if target.column(one) is None:
                hint = nearest(one, target.types) or "; add it, or leave it out in a view"
                if one in (START, END):
                    hint = f"; add it, of type {types[one]}"
                raise DatabaseFailed(f"table {self.sink.table} has no column {one}{hint}")
        return target

    def _prepare(self, target: sql.Target, sequences: sql.Sequences | None) -> bool:
        """Whether the batch is new; sweeps away what a crash has left."""
        self._lock(sql.BATCHES)
        self.database.run(sql.create_batches(target.schema))
        left = self.database.rows(
            "SELECT tablename FROM pg_tables WHERE schemaname = ? AND left(tablename, "
            f"{len(self._prefix())}) = ?",
            target.schema,
            self._prefix(),
        )
        for (name,) in left:
            self.database.run(f"DROP TABLE {sql.sql_name(target.schema)}.{sql.sql_name(name)}")
        if sequences is not None:
            self._keep_sequences(sequences)
        is_new = self._is_new(target)
        self.database.commit()
        return is_new

    def _keep_sequences(self, sequences: sql.Sequences) -> None:
        found = self.database.rows(
            "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(?)",
            sequences.name,
        )
        if not found:
            for statement in (*sequences.create(), sequences.told_by_rows()):
                if statement is not None:
                    self.database.run(statement)
        elif found[0][0] != sequences.describe():
            raise DatabaseFailed(
                f"{sequences.table} holds other sequences ({found[0][0]}), which cannot be "
                f"compared with those by {', '.join(sequences.by)}; take back the change, or drop "
                f"{sequences.table}: then rows are compared with that column of the table, if it "
                "has it, or else count as newer"
            )

    def _fill(
        self, frame: DataFrame, columns: list[str], sequences: sql.Sequences | None, staging: str
    ) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        rows = changes(frame, self.sink) if self.sink.mode == "upsert" else frame
        kept = [F.col(quote(name)).alias(f"c{at}") for at, name in enumerate(columns)]
        if self.sink.mode == "upsert":
            kept.append(F.col(quote(DELETED)).alias(sql.DELETED))
        for at, name in enumerate(sequences.by if sequences else ()):
            kept.append(F.col(quote(SEQUENCE)).getField(name).alias(f"q{at}"))
        numbered = rows.select(F.monotonically_increasing_id().alias(sql.ROW), *kept)
        options = {"numPartitions": str(CONNECTIONS_MAX), **TIMEOUTS, **_properties(self.sink)}
        writer = numbered.write.format("jdbc").options(**options).mode("append")
        writer = writer.option("url", self.sink.url).option("driver", DRIVER)
        try:
            writer.option("dbtable", staging).save()
        except Py4JJavaError as error:
            if not is_of_database(error):
                raise
            secrets = _secrets(self.pipeline, self.sink)
            raise failure(error, f"table {self.sink.table}", secrets) from None

    def _merge(self, merge: sql.Merge, sequences: sql.Sequences | None, step: Step) -> None:
        target = merge.target
        self._lock(self._prefix())
        if self._is_new(target):
            if sequences is not None:
                # Another pipeline may write to the same table.
                self._lock(sequences.name)
                self.database.run(sequences.forget(self.sink.tombstone_life_s))
            if isinstance(sequences, Deletes):
                for statement in History(merge, sequences).statements():
                    self.database.run(statement)
            else:
                self._put_over(merge, sequences)
            step("note")
            note = (self.pipeline.name, self.sink.name, self.batch.query, self.batch.id)
            self.database.run(sql.record_batch(target.schema), *note)
        self.database.run(f"DROP TABLE IF EXISTS {merge.staging}")
        step("commit")
        self.database.commit()

    def _put_over(self, merge: sql.Merge, sequences: sql.Sequences | None) -> None:
        """Newer rows over those that are there; all of them, where nothing is to be compared."""
        is_place = sequences is not None and tuple(sequences.by) == PLACE
        if sequences is not None:
            for statement in (merge.hold_back_places if is_place else merge.hold_back)(sequences):
                self.database.run(statement)
        if is_place or merge.has_cast_keys:
            self.database.run(merge.leave_one(sequences))
        if merge.keys:
            self.database.run(merge.delete())
        self._insert(merge)
        if sequences is not None:
            self.database.run(merge.remember(sequences))

    def _insert(self, merge: sql.Merge) -> None:
        try:
            self.database.run(merge.insert())
        except DatabaseFailed as error:
            if error.state != _NO_UNIQUE_INDEX:
                raise
            key = ", ".join(map(sql.sql_name, merge.keys))
            raise DatabaseFailed(
                f"table {self.sink.table} has no primary key or unique index on ({key}), by which "
                f"rows are replaced: ALTER TABLE {merge.target.name} ADD PRIMARY KEY ({key})"
            ) from None

    def _is_new(self, target: sql.Target) -> bool:
        whose = (self.pipeline.name, self.sink.name, self.batch.query)
        found = self.database.rows(sql.last_batch(target.schema), *whose)
        last = Batch(self.batch.query, found[0][0]) if found else None
        return self.batch.is_new(last, self.sink.name)

    def _lock(self, what: str) -> None:
        """Until the commit; against a second run of the same pipeline."""
        self.database.run(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        self.database.rows("SELECT pg_advisory_xact_lock(hashtext(?))", what)

    def _prefix(self) -> str:
        whose = f"{self.pipeline.name}\0{self.sink.name}"
        return f"{sql.STAGING_PREFIX}{hashlib.sha256(whose.encode()).hexdigest()[:12]}_"
