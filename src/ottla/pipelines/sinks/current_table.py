"""A directory of Parquet that always holds the latest row of each key.

    <path>/current -> versions/v-00000042-5d2c81f0
    <path>/versions/v-00000041-…/  v-00000042-5d2c81f0/part-….parquet  _ottla/  _ottla.json

Every batch makes a new version out of the last one, written aside; then the link `current` is
replaced by one rename. A crash leaves the old or the new version, never a half. Each version says
in `_ottla.json` which batch made it, so a batch that comes again changes nothing. The version
before the current one is kept for those who are still reading it: resolve the link first
(`os.path.realpath`), and read what it leads to.

In `_ottla/`, which readers of Parquet pass over, each key has its sequence: also those keys that
were removed, until their tombstone has lived its time.

A batch costs a rewrite of the whole table: for tables of many gigabytes there are databases.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import CurrentTableSink, Pipeline, Source
from ottla.pipelines.language.problems import PipelineFailed, Problem
from ottla.pipelines.sinks import history
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.contract import SinkKind
from ottla.pipelines.sinks.files import local_path, path_problems
from ottla.pipelines.sinks.upserts import (
    ARRIVAL,
    DELETED,
    DELETED_AT,
    SEQUENCE,
    START,
    changes,
    newest,
    remembered,
    rows_identity,
    sequence_of,
    told_by_rows,
    upsert_problems,
)
from ottla.pipelines.views.columns import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CURRENT: Final = "current"
VERSIONS: Final = "versions"
STAMP: Final = "_ottla.json"
SEQUENCES: Final = "_ottla"
# The streaming session has as many partitions as its state, far too many files for a small table.
FILES_MIN: Final = 4
FILE_BYTES: Final = 64 * 1024 * 1024

Step = Callable[[str], None]


def _nothing(_: str) -> None:
    pass


class CurrentTables(SinkKind[CurrentTableSink]):
    def problems(
        self, sink: CurrentTableSink, frame: DataFrame, sources: Sequence[Source]
    ) -> list[Problem]:
        return [*upsert_problems(sink, frame, sources), *path_problems(sink)]

    def identity(self, sink: CurrentTableSink, secrets: frozenset[str]) -> dict[str, Any]:
        return {"kind": "current_table", "path": sink.path, **rows_identity(sink)}

    def write_batch(
        self, rows: DataFrame, pipeline: Pipeline, sink: CurrentTableSink, batch: Batch
    ) -> None:
        merge(rows, sink, batch)


def merge(
    frame: DataFrame,
    sink: CurrentTableSink,
    batch: Batch,
    *,
    step: Step = _nothing,
) -> None:
    """Brings the table to what it is after this batch. `step` hears what comes next, for tests."""
    root = local_path(sink.path)
    versions = root / VERSIONS
    step("begin")
    versions.mkdir(parents=True, exist_ok=True)
    last = current_version(root)
    step("clean")
    _remove_others(versions, last)
    if not batch.is_new(_stamp(last), sink.name):
        return
    number = 1 if last is None else _number(last) + 1
    # A name of its own: what tasks of a killed run may still write goes elsewhere.
    new = versions / f"v-{number:08}-{secrets.token_hex(4)}"
    _write(frame, sink, last, new, step)
    step("stamp")
    (new / STAMP).write_text(batch.to_json())
    step("link")
    link = root / f".{CURRENT}.new"
    link.unlink(missing_ok=True)
    link.symlink_to(new.relative_to(root))
    step("switch")
    link.replace(root / CURRENT)
    step("remove old")
    _remove_others(versions, new)
    step("end")


def current_version(root: Path) -> Path | None:
    link = root / CURRENT
    return root / link.readlink() if link.is_symlink() else None


def _stamp(version: Path | None) -> Batch | None:
    return None if version is None else Batch.from_json((version / STAMP).read_text())


def _number(version: Path) -> int:
    return int(version.name.split("-")[1])


def _remove_others(versions: Path, current: Path | None) -> None:
    """What a crash has left unfinished, and what is older than the version before the current."""
    for found in versions.glob("v-*"):
        is_last = current is not None and _number(found) == _number(current) - 1
        if found != current and not is_last:
            shutil.rmtree(found)


def _write(
    frame: DataFrame, sink: CurrentTableSink, last: Path | None, new: Path, step: Step
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    names = sequence_of(sink, frame.columns)
    files = FILES_MIN if last is None else _files(last)
    # Twice written: the rows, and the sequences of all keys.
    merged = _merged(frame, sink, names, last).persist()
    try:
        step("write")
        if sink.stored_as_scd_type == 2:
            rows, sequences = history.rows_of(merged), history.kept_beside(merged, sink)
        else:
            rows = merged.where(~F.col(quote(DELETED))).drop(SEQUENCE, DELETED, DELETED_AT)
            sequences = merged.select(*map(quote, (*sink.keys, SEQUENCE, DELETED_AT)))
        rows.coalesce(files).write.parquet(str(new))
        step("write sequences")
        if names:
            sequences.coalesce(files).write.parquet(str(new / SEQUENCES))
    finally:
        merged.unpersist()


def _merged(
    frame: DataFrame, sink: CurrentTableSink, names: tuple[str, ...], last: Path | None
) -> DataFrame:
    """The rows of the last version, with this batch's put over them; removed keys too."""
    from pyspark.sql import functions as F  # noqa: N812

    removed = F.when(F.col(quote(DELETED)), F.current_timestamp())
    both = changes(frame, sink).withColumn(DELETED_AT, removed).withColumn(ARRIVAL, F.lit(1))
    if last is not None:
        old = _stored(frame.sparkSession, sink, names, last).withColumn(ARRIVAL, F.lit(0))
        both = old.unionByName(both, allowMissingColumns=True)
    if sink.stored_as_scd_type == 2:
        return history.told_anew(both, sink)
    return newest(both, sink, names).drop(ARRIVAL)


def _stored(
    spark: SparkSession, sink: CurrentTableSink, names: tuple[str, ...], last: Path
) -> DataFrame:
    """What the last version knows of each key, without tombstones that have lived their time."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.read.parquet(str(last))
    if (START in rows.columns) != (sink.stored_as_scd_type == 2):
        raise PipelineFailed(
            f"sink {sink.name}: {sink.path} is no table of type {sink.stored_as_scd_type}; write "
            "to another directory"
        )
    if not (names and (last / SEQUENCES).is_dir()):
        nothing = F.lit(None)
        old = rows.withColumn(DELETED, F.lit(False)).withColumn(
            DELETED_AT, nothing.cast("timestamp")
        )
        if not names:
            return old.withColumn(SEQUENCE, F.struct(F.lit(0).alias("none")))
        return told_by_rows(old, names)
    stored = spark.read.parquet(str(last / SEQUENCES))
    known = remembered(stored, sink, names, sink.path)
    if sink.stored_as_scd_type == 2:
        beside = known.withColumn(DELETED, F.lit(True))
        return history.events_of(rows, sink).unionByName(beside, allowMissingColumns=True)
    gone = F.col(quote(DELETED_AT)).isNotNull()
    both = rows.join(known, list(sink.keys), "full").withColumn(DELETED, gone)
    # As they stood: a join puts its keys in front.
    return both.select(*map(quote, (*rows.columns, SEQUENCE, DELETED, DELETED_AT)))


def _files(last: Path) -> int:
    with os.scandir(last) as entries:
        size = sum(file.stat().st_size for file in entries if file.is_file())
    return max(FILES_MIN, size // FILE_BYTES)
