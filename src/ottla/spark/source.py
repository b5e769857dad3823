"""`format("ottla")`: what Spark asks first, and where it is sent from here.

Every Spark session imports this module when it looks for sources, so the rest is imported when it
is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from ottla.spark.options.source import SourceOptions


class OttlaDataSource(DataSource):
    """Reads and writes topics, in batches and as streams."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> str:
        from ottla.spark.formats.typed_columns import typed_schema

        options = _options_of_either(self.options)
        return typed_schema(options.columns, options.key_format, options.value_format)

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.spark.batch_reader import make_reader
        from ottla.spark.options.source import SourceOptions

        return make_reader(SourceOptions.parse(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from ottla.spark.options.source import SourceOptions
        from ottla.spark.stream_reader import OttlaStreamReader

        return OttlaStreamReader(SourceOptions.parse(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from ottla.spark.options.sink import SinkOptions
        from ottla.spark.writer import make_writer

        return make_writer(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from ottla.spark.options.sink import SinkOptions
        from ottla.spark.writer import make_stream_writer

        return make_stream_writer(SinkOptions.parse(self.options), schema, overwrite=overwrite)


def _options_of_either(options: Mapping[str, str]) -> SourceOptions:
    """Spark asks for the schema without saying whether it is a stream's; those have no end."""
    from ottla.spark.options.source import SourceOptions
    from ottla.spark.options.values import BadOption

    try:
        return SourceOptions.parse(options, streaming=False)
    except BadOption:
        if any(name.startswith("ending") for name in options):
            raise
        return SourceOptions.parse(options, streaming=True)
