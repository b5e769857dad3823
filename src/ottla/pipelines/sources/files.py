"""Files as a stream of those that are new, or as a table of those that are there.

Spark takes a file when it sees its name, so a file must be moved into the directory when it is
complete (or have a name that begins with `.` or `_` until then, which Spark passes over).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ottla.pipelines.language.model import FileSource, Pipeline
from ottla.pipelines.language.problems import BadPipeline
from ottla.pipelines.sources import schemas
from ottla.pipelines.sources.bad_records import FILE, RAW_VALUE, Decoder, Posting, decode
from ottla.pipelines.sources.contract import GivenFiles, Letters, Offsets, SourceKind
from ottla.pipelines.sources.rows import fields, opened
from ottla.pipelines.sources.schemas import bad_source
from ottla.pipelines.views.columns import quote
from ottla.pipelines.views.graph import Opened
from ottla.spark.formats.avro import BadFile, file_schema, parse_file
from ottla.spark.formats.typed_columns import ERROR_COLUMN, Format, arrow_type, spark_type
from ottla.spark.options.letters import LetterOptions, letter_sink
from ottla.spark.options.values import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CORRUPT: Final = "_ottla_corrupt"
SHOWN_CHARS: Final = 80
# What Spark gives for this format; a stream wants to be told.
_BINARY_FILE: Final = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
_WILDCARD: Final = re.compile(r"[*?\[{]")
_HAS_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def located(pipeline: Pipeline, path: str) -> str:
    """A path of the file is seen from the file's own directory."""
    if _HAS_SCHEME.match(path):
        return path
    return str(pipeline.file.absolute().parent / path)


class Files(SourceKind[FileSource]):
    def open(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: FileSource,
        letters: Letters | None,
        start: Offsets | None,
    ) -> Opened:
        from pyspark.sql import functions as F  # noqa: N812

        posted = None if letters is None else _letter_options(pipeline, source)
        rows = _read(spark, pipeline, source, posted)
        if source.format == "parquet":
            return opened(rows, source)
        place = F.concat(F.lit("file "), F.col(FILE))
        return opened(rows, source, place=place, columns=_values)

    def shape(self, source: FileSource) -> StructType | None:
        return _shape(source)

    def identity(self, source: FileSource) -> dict[str, Any]:
        return {"kind": "files", "path": source.path}

    def is_stream(self, source: FileSource) -> bool:
        return source.read == "stream"

    def has_bad_records(self, source: FileSource) -> bool:
        return source.format != "parquet"

    def stand_in(
        self, spark: SparkSession, pipeline: Pipeline, source: FileSource, given: GivenFiles
    ) -> Opened:
        return self.open(spark, pipeline, given.files(source), None, None)


def _values(rows: DataFrame) -> DataFrame:
    return rows.select(fields(rows, "value"))


def _shape(source: FileSource) -> StructType | None:
    if source.format in ("parquet", "avro") and source.schema is None:
        return None
    if source.format == "parquet":
        return schemas.table_shape(source)
    form = schemas.value_format(source)
    assert form is not None
    return schemas.fields_of(form)


def _letter_options(pipeline: Pipeline, source: FileSource) -> LetterOptions:
    kafka = {f"kafka.{name}": value for name, value in pipeline.kafka.items()}
    options = {name.lower(): text for name, text in kafka.items()}
    try:
        sink = letter_sink({"bootstrap": pipeline.bootstrap, **options}, source.bad_records.topic)
    except BadOption as wrong:
        raise bad_source(source, str(wrong)) from wrong
    return LetterOptions(sink, pipeline.name, source.name)


def _read(
    spark: SparkSession, pipeline: Pipeline, source: FileSource, letters: LetterOptions | None
) -> DataFrame:
    """Rows with `value`, `_error`, `_file` and `_raw_value`; Parquet with its own columns."""
    from pyspark.errors import AnalysisException

    path = located(pipeline, source.path)
    try:
        if source.read == "stream":
            # A stream waits for files whose names fit; their directory must be there.
            spark.readStream.text(_directory(path))
        match source.format:
            case "json":
                return _read_json(spark, source, path, letters)
            case "csv":
                return _posted(_read_csv(spark, source, path), letters)
            case "parquet":
                return _read_parquet(spark, source, path)
            case "avro":
                return _posted(_read_avro(spark, source, path), letters)
    except AnalysisException as wrong:
        if wrong.getCondition() == "PATH_NOT_FOUND":
            raise bad_source(
                source, f"nothing is found at {path}: make the directory, or correct the path"
            ) from wrong
        raise


def _directory(path: str) -> str:
    """The part of a path before the first wildcard."""
    found = _WILDCARD.search(path)
    return path if found is None else path[: found.start()].rpartition("/")[0] or "/"


def _reader(spark: SparkSession, source: FileSource, format: str) -> Any:
    reader: Any = spark.readStream if source.read == "stream" else spark.read
    if source.read == "stream" and source.max_files_per_batch is not None:
        reader = reader.option("maxFilesPerTrigger", str(source.max_files_per_batch))
    return reader.format(format).options(**source.options)


def _posted(frame: DataFrame, letters: LetterOptions | None) -> DataFrame:
    """What is decoded elsewhere than in a task of ours goes through one for its letters."""
    return frame if letters is None else frame.mapInArrow(Posting(letters), frame.schema)


def _read_json(
    spark: SparkSession, source: FileSource, path: str, letters: LetterOptions | None
) -> DataFrame:
    """Lines, decoded as the values of a topic are; those without a letter are no records."""
    from pyspark.sql import functions as F  # noqa: N812

    form = schemas.value_format(source)
    lines: DataFrame = _reader(spark, source, "text").load(path)
    named = lines.where(F.trim("value") != "").select(
        F.col("value").cast("binary"), F.col("_metadata.file_path").alias(FILE)
    )
    return decode(named, Decoder(None, form, (("value", "BINARY"), (FILE, "STRING")), letters))


def _read_csv(spark: SparkSession, source: FileSource, path: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType, StructType

    wanted = _shape(source)
    assert wanted is not None
    whole = StructType([*wanted.fields]).add(CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    if "enforceSchema" not in source.options:
        # A header with other names is an error; Spark's default is to go by the places alone.
        options["enforceSchema"] = "false"
    frame: DataFrame = _reader(spark, source, "csv").options(**options).schema(whole).load(path)
    columns = [F.col(quote(name)) for name in wanted.names]
    shown = F.substring(CORRUPT, 1, SHOWN_CHARS)
    # Spark notices a wrong field only where somebody wants that field: this wants them all.
    is_read = F.xxhash64(*columns) != F.lit(0)
    error = F.when(
        F.col(CORRUPT).isNotNull() & is_read,
        F.concat(F.lit("value: it does not fit the schema: "), shown),
    )
    return frame.select(
        F.struct(*columns).alias("value"),
        F.col("_metadata.file_path").alias(FILE),
        error.alias(ERROR_COLUMN),
        F.col(CORRUPT).cast("binary").alias(RAW_VALUE),
    )


def _read_parquet(spark: SparkSession, source: FileSource, path: str) -> DataFrame:
    """A Parquet file is good or bad as a whole: `drop` passes over bad ones, uncounted."""
    from pyspark.errors import AnalysisException

    if source.bad_records.do == "dead_letter":
        raise bad_source(
            source, "a Parquet file has no bad records to send to a topic: choose fail or drop"
        )
    wanted = _shape(source)
    if wanted is None:
        try:
            wanted = spark.read.options(**source.options).parquet(path).schema
        except AnalysisException as wrong:
            if wrong.getCondition() != "UNABLE_TO_INFER_SCHEMA":
                raise
            raise _no_schema(source, path) from wrong
    reader = _reader(spark, source, "parquet").schema(wanted)
    if source.bad_records.do == "drop":
        reader = reader.option("ignoreCorruptFiles", "true")
    frame: DataFrame = reader.load(path)
    return frame


def _read_avro(spark: SparkSession, source: FileSource, path: str) -> DataFrame:
    """By fastavro: Spark's own reader is a jar that is not always there. A file is read whole."""
    from pyspark.sql import functions as F  # noqa: N812

    schema = source.schema or _schema_of_first(spark, source, path)
    files: DataFrame = _reader(spark, source, "binaryFile").schema(_BINARY_FILE).load(path)
    named = files.select(F.col("content"), F.col("path").alias(FILE))
    kind = spark_type(Format("avro", schema))
    columns = f"value {kind}, {FILE} STRING, {ERROR_COLUMN} STRING, {RAW_VALUE} BINARY"
    return named.mapInArrow(AvroFiles(schema), columns)


def _schema_of_first(spark: SparkSession, source: FileSource, path: str) -> str:
    first = spark.read.format("binaryFile").options(**source.options).load(path).limit(1)
    rows = first.select("content", "path").mapInArrow(_schemas, "schema STRING, error STRING")
    found = rows.collect()
    if not found:
        raise _no_schema(source, path)
    if found[0].error is not None:
        raise bad_source(
            source, f"{found[0].error}: give the schema, or put a file there that is Avro"
        )
    return str(found[0].schema)


def _schemas(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for content, path in zip(batch.column("content"), batch.column("path"), strict=True):
            schema, error = None, None
            try:
                schema = file_schema(content.as_py())
            except BadFile as wrong:
                error = f"{path}: {wrong}"
            yield pa.RecordBatch.from_pydict(
                {"schema": pa.array([schema], pa.string()), "error": pa.array([error], pa.string())}
            )


@dataclass(frozen=True)
class AvroFiles:
    """For mapInArrow: the records of each file, or one row with what is wrong with the file."""

    schema: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for content, path in zip(batch.column("content"), batch.column(FILE), strict=True):
                yield from self._rows(content.as_buffer().to_pybytes(), path.as_py())

    def _rows(self, content: bytes, path: str) -> Iterator[pa.RecordBatch]:
        try:
            # All of it before the first row leaves: a file is good or bad as a whole.
            blocks = list(parse_file(content, self.schema))
        except BadFile as wrong:
            nothing = pa.nulls(1, arrow_type(Format("avro", self.schema)))
            yield _batch(nothing, path, str(wrong))
            return
        for values in blocks:
            yield _batch(values, path, None)


def _batch(values: pa.Array, path: str, error: str | None) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "value": values,
            FILE: pa.repeat(pa.scalar(path, pa.string()), count),
            ERROR_COLUMN: pa.repeat(pa.scalar(error, pa.string()), count),
            # The bytes of a whole file are too much for a message: its name is in the headers.
            RAW_VALUE: pa.nulls(count, pa.binary()),
        }
    )


def _no_schema(source: FileSource, path: str) -> BadPipeline:
    return bad_source(
        source,
        f"there is no {source.format} file in {path} to take the schema from: "
        "give the schema, or put a first file there",
    )
