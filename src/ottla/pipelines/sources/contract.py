"""What a kind of source can do. A new kind is a file beside this one, and a line in `kinds.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from ottla.pipelines.jars import Jar
from ottla.pipelines.language.model import FileSource, Pipeline, Source, TopicSource
from ottla.pipelines.sources.rows import opened
from ottla.pipelines.views.graph import Opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# As startingOffsets has them: by topic and partition.
Offsets: TypeAlias = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Letters:
    """The dead letters of a source, for the one flow that writes them."""

    # Where they begin, in the form of startingOffsets; empty: with the first record that is read.
    since: Offsets = field(default_factory=dict)


class GivenFiles(Protocol):
    """The files of a test, as what a source would have read."""

    def messages(self, source: TopicSource) -> DataFrame:
        """Bytes, as brokers give them."""

    def files(self, source: FileSource) -> FileSource:
        """The source, of a directory with the test's files."""

    def rows(self, source: Source, schema: str | None, *, is_stream: bool) -> DataFrame:
        """Of a source that needs no parsing."""


Kind = TypeVar("Kind", bound=Source, contravariant=True)


class SourceKind(Protocol[Kind]):
    def open(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: Kind,
        letters: Letters | None,
        start: Offsets | None,
    ) -> Opened:
        """See `kinds.open_source`."""

    def shape(self, source: Kind) -> StructType | None:
        """The columns that SQL sees, asking nobody; None: only the source itself knows."""

    def identity(self, source: Kind) -> dict[str, Any]:
        """What is read, as checkpoints note it: another is another source to them."""

    def is_stream(self, source: Kind) -> bool:
        return True

    def has_bad_records(self, source: Kind) -> bool:
        """Whether there may be some: only what is parsed can be wrong."""
        return False

    def needed_jar(self, source: Kind, spark_version: str) -> Jar | None:
        return None

    def stand_in(
        self, spark: SparkSession, pipeline: Pipeline, source: Kind, given: GivenFiles
    ) -> Opened:
        """As `open`, of the files of a test."""
        rows = given.rows(source, source.schema, is_stream=self.is_stream(source))
        return opened(rows, source)
