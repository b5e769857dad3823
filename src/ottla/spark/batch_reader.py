"""The batch read: what lies between two positions at the moment the query is planned."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ottla.spark.asker import Asker
from ottla.spark.data_loss import Loss, report, within
from ottla.spark.filters import Narrowing, is_offered, take
from ottla.spark.options.source import SourceOptions
from ottla.spark.planning import CannotRead, OffsetRange, split
from ottla.spark.read_task import OffsetTask, read_task
from ottla.spark.versions import Shipped


class OttlaReader(Shipped, DataSourceReader):
    """Planned on the driver, pickled, and read on the executors: it holds settings only."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        whole = self._narrowing.narrow(planned(self._options, Asker(self._options)))
        pieces = split(
            whole,
            tasks_min=self._options.min_partitions,
            offsets_max=self._options.max_records_per_partition,
        )
        return [OffsetTask(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition)


class OttlaFilteringReader(OttlaReader):
    """Takes filters. A class of its own: having this method is an error while Spark's setting
    spark.sql.python.filterPushdown.enabled is off."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        self._narrowing, handed_back = take(filters)
        return handed_back


def make_reader(options: SourceOptions) -> OttlaReader:
    return OttlaFilteringReader(options) if is_offered() else OttlaReader(options)


def planned(options: SourceOptions, asker: Asker) -> list[OffsetRange]:
    """The ranges of the query, inside of what the logs hold."""
    ends = asker.ends(fresh=True)
    asker.check_topics_exist(some=False)
    start = asker.resolve(options.starting, ends, is_start=True).offsets
    end = asker.resolve(options.ending, ends, is_start=False).offsets
    beyond = []
    for partition in sorted(start):
        if start[partition] > ends[partition].latest:
            beyond.append(Loss(partition, start[partition], ends[partition]))
        elif start[partition] > end[partition]:
            raise CannotRead(
                f"topic {partition.topic} partition {partition.partition}: the read begins at "
                f"offset {start[partition]} and ends before, at {end[partition]}"
            )
    kept, lost = within(start, end, ends)
    report(beyond + lost, fail=options.fail_on_data_loss)
    return kept
