"""Records that do not parse: the query fails, or they are dropped, or they become dead letters.

A frame with bad records has the column `_error` (null where all is well), the columns that say
where a row comes from (`topic`, `partition`, `offset`; for files `_file`), and where it was decoded
by a task of ours `_raw_value` (and `_raw_key`), the bytes of bad rows as they came. Dead letters
are written by the task that decodes, before it hands its rows on (`spark/dead_letters.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipelines.language.model import Source
from ottla.spark.columns import ARROW, spark_schema
from ottla.spark.formats.typed_columns import ERROR_COLUMN, Format, typed_batch, typed_schema
from ottla.spark.options.letters import LetterOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FILE: Final = "_file"
RAW_VALUE: Final = "_raw_value"
HEADERS: Final = "headers"


def good_rows(decoded: DataFrame, source: Source, place: Column | None) -> DataFrame:
    """The rows without an error, counted as `source:<name>`; `_error` is still there.

    Spark may evaluate the filters of a query in any order and a bad row's fields are null, so that
    a WHERE of the user's could hide it. Filters are not moved past an observation: the check for
    `fail` comes before it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    has_errors = ERROR_COLUMN in decoded.columns
    frame = decoded
    if has_errors and source.bad_records.do == "fail":
        assert place is not None, "what is parsed comes from somewhere"
        line = F.concat(place, F.lit(": "), F.translate(ERROR_COLUMN, "\n\r", "  "))
        frame = frame.where(
            F.when(F.col(ERROR_COLUMN).isNull(), True).otherwise(
                F.raise_error(line).cast("boolean")
            )
        )
    frame = _counted(frame, source, bad=F.col(ERROR_COLUMN) if has_errors else None)
    if has_errors and source.bad_records.do != "fail":
        frame = frame.where(F.col(ERROR_COLUMN).isNull())
    return frame


def _counted(frame: DataFrame, source: Source, *, bad: Column | None) -> DataFrame:
    """Observed as `source:<name>`: rows, and those of them where `bad` is not null."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = F.count(F.lit(1)).alias("rows"), F.count(F.lit(None) if bad is None else bad)
    return frame.observe(f"source:{source.name}", counts[0], counts[1].alias("bad"))


def bad_rows(decoded: DataFrame) -> DataFrame | None:
    """The others: value as it came, and reason; None where nothing is parsed."""
    from pyspark.sql import functions as F  # noqa: N812

    if RAW_VALUE not in decoded.columns:
        return None
    bad = decoded.where(F.col(ERROR_COLUMN).isNotNull())
    return bad.select(F.col(RAW_VALUE).alias("value"), F.col(ERROR_COLUMN).alias("reason"))


# ------------------------------------------------------------------------ decoding in a Python task


@dataclass(frozen=True)
class Decoder:
    """For mapInArrow: types `key` and `value`, adds `_error`, passes other columns on.

    The bytes of bad rows are kept in `_raw_key` and `_raw_value`.
    """

    key: Format | None
    value: Format | None
    # The columns that come in, in their order, each with its type in DDL.
    columns: tuple[tuple[str, str], ...]
    # Of files; those of topics are written where they are read.
    letters: LetterOptions | None = None

    def schema(self) -> str:
        """What comes out, as DDL."""
        typed = typed_schema(self._messages(), self.key, self.value)
        passed = ", ".join(
            f"{name} {kind}" for name, kind in self.columns if name in self._passed()
        )
        raw = ", ".join(f"_raw_{name} BINARY" for name in self._messages())
        return ", ".join(filter(None, (typed, passed, f"{ERROR_COLUMN} STRING", raw)))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoded = map(self._decoded, batches)
        return decoded if self.letters is None else Posting(self.letters)(decoded)

    def _messages(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns if name in ("key", "value"))

    def _passed(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns if name not in ("key", "value"))

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = self._messages()
        # Spark's settings decide how wide its Arrow strings are.
        raw = {name: batch.column(name).cast(ARROW[name]) for name in names}
        formed = typed_batch(
            pa.RecordBatch.from_pydict(raw), (*names, ERROR_COLUMN), self.key, self.value
        )
        errors = formed.column(ERROR_COLUMN)
        arrays = {name: formed.column(name) for name in names}
        arrays |= {name: batch.column(name) for name in self._passed()}
        arrays[ERROR_COLUMN] = errors
        is_bad, nothing = errors.is_valid(), pa.scalar(None, pa.binary())
        for name in names:
            arrays[f"_raw_{name}"] = pc.if_else(is_bad, raw[name], nothing)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


@dataclass(frozen=True)
class Posting:
    """For mapInArrow: passes the rows of files on, when the letters of the bad ones are written."""

    letters: LetterOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            errors = batch.column(ERROR_COLUMN)
            if errors.null_count < len(errors):
                from ottla.spark.dead_letters import write_file_letters

                write_file_letters(
                    self.letters, batch.column(FILE), batch.column(RAW_VALUE), errors
                )
            yield batch


def decode(raw: DataFrame, decoder: Decoder) -> DataFrame:
    return raw.select([name for name, _ in decoder.columns]).mapInArrow(decoder, decoder.schema())


def message_columns(*, headers: bool) -> tuple[tuple[str, str], ...]:
    """Those of a raw message that a decoder takes, with their types."""
    names = ("key", "value", "topic", "partition", "offset", "timestamp")
    wanted = (*names, HEADERS) if headers else names
    return tuple((name, spark_schema((name,)).removeprefix(name).strip()) for name in wanted)
