"""A directory of Parquet that always holds the latest row of each key.

    <path>/current -> versions/v-00000042-5d2c81f0
    <path>/versions/v-00000041-…/  v-00000042-5d2c81f0/part-….parquet  _ottla.json

Every batch makes a new version out of the last one, written aside; then the link `current` is
replaced by one rename. A crash leaves the old or the new version, never a half. Each version says
in `_ottla.json` which batch made it, so a batch that comes again changes nothing. The version
before the current one is kept for those who are still reading it: resolve the link first
(`os.path.realpath`), and read what it leads to.

A batch costs a rewrite of the whole table: for tables of many gigabytes there are databases.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.pipelines.batches import Batch
from ottla.pipelines.file_sinks import local_path
from ottla.pipelines.model import CurrentTableSink, Pipeline
from ottla.pipelines.upserts import DELETED, changes, quote, stored_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CURRENT: Final = "current"
VERSIONS: Final = "versions"
STAMP: Final = "_ottla.json"
# The streaming session has as many partitions as its state, far too many files for a small table.
FILES_MIN: Final = 4
FILE_BYTES: Final = 64 * 1024 * 1024

Step = Callable[[str], None]


def _nothing(_: str) -> None:
    pass


def merge(
    frame: DataFrame,
    pipeline: Pipeline,
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
    step("write")
    _merged(frame, sink, last).write.parquet(str(new))
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


def _merged(frame: DataFrame, sink: CurrentTableSink, last: Path | None) -> DataFrame:
    """The rows of the last version, with this batch's put over them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    new = changes(frame, sink)
    if last is None:
        return new.where(~F.col(quote(DELETED))).drop(DELETED).coalesce(FILES_MIN)
    is_new, rank = "ottla new", "ottla rank"
    old = frame.sparkSession.read.parquet(str(last)).withColumn(DELETED, F.lit(False))
    both = old.withColumn(is_new, F.lit(0)).unionByName(
        new.withColumn(is_new, F.lit(1)), allowMissingColumns=True
    )
    order = stored_order(sink, frame.columns)
    newest_first = [] if order is None else [F.col(quote(order)).desc_nulls_last()]
    same_key = Window.partitionBy(*map(quote, sink.key)).orderBy(
        *newest_first, F.col(quote(is_new)).desc()
    )
    newest = both.withColumn(rank, F.row_number().over(same_key)).where(
        (F.col(quote(rank)) == 1) & ~F.col(quote(DELETED))
    )
    return newest.drop(rank, is_new, DELETED).coalesce(_files(last))


def _files(last: Path) -> int:
    with os.scandir(last) as entries:
        size = sum(file.stat().st_size for file in entries if file.is_file())
    return max(FILES_MIN, size // FILE_BYTES)
