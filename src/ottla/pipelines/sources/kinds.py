"""The kinds of sources, and what may be asked of any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import (
    DeltaSource,
    FileSource,
    JdbcSource,
    Pipeline,
    RateSource,
    Source,
    TopicSource,
)
from ottla.pipelines.sources.contract import Letters, Offsets, SourceKind
from ottla.pipelines.sources.delta import DeltaTables
from ottla.pipelines.sources.files import Files
from ottla.pipelines.sources.jdbc import Databases
from ottla.pipelines.sources.rate import Rates
from ottla.pipelines.sources.topic import Topics
from ottla.pipelines.views.graph import Opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

KINDS: Final[Mapping[type[Source], SourceKind[Any]]] = {
    TopicSource: Topics(),
    FileSource: Files(),
    JdbcSource: Databases(),
    DeltaSource: DeltaTables(),
    RateSource: Rates(),
}


def source_kind(source: Source) -> SourceKind[Any]:
    return KINDS[type(source)]


def open_source(
    spark: SparkSession,
    pipeline: Pipeline,
    source: Source,
    letters: Letters | None = None,
    start: Offsets | None = None,
) -> Opened:
    """Raises BadPipeline where the file is wrong about the source, PipelineFailed for the rest.

    With `letters` whoever reads the frame writes the source's dead letters; otherwise its bad
    records are dropped, unless the source wants to fail. `start` is where a topic's first batch
    begins, whatever the file says.
    """
    return source_kind(source).open(spark, pipeline, source, letters, start)


def shape(source: Source) -> StructType | None:
    """The columns as SQL sees them, without broker or files; None: only the source itself knows."""
    return source_kind(source).shape(source)


def identity(source: Source) -> dict[str, Any]:
    """What is read; where reading starts, and how values are decoded, may change."""
    return source_kind(source).identity(source)


def is_stream(source: Source) -> bool:
    return source_kind(source).is_stream(source)


def has_letters(source: Source) -> bool:
    """Whether there may be some."""
    is_wanted = source.bad_records.do == "dead_letter"
    return is_wanted and source_kind(source).has_bad_records(source)
