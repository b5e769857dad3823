"""Rows of Spark, as Arrow batches, become Kafka's record batches: in bulk, no object per row.

    Arrow batch → columns → a partition per row → rows in order of partitions → cut → written

The work per row is done by kernels, compiled (`rows_numba.py`) or with numpy
(`rows_numpy.py`); both pass the same tests. Rows of a partition keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark import kernels
from ottla.spark.encoding.sink_columns import (
    CannotEncode,
    Column,
    Headers,
    Numbers,
    binary_column,
    explicit_partitions,
    find_columns,
    header_column,
    no_column,
    no_headers,
)
from ottla.types import TopicPartition
from ottla.wire.compression import Compression, compress
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    write_header,
)

__all__ = ["BATCH_BYTES", "ArrowEncoder", "CannotEncode", "Encoded"]

# Below the 1,048,588 bytes that a broker takes by default, also when nothing can be compressed.
BATCH_BYTES: Final = 1_000_000
BATCH_BYTES_MAX: Final = 0x7FFF_FFFF
GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
# What a second-level cache holds; and how many rows are worth a call.
WINDOW_BYTES: Final = 1024 * 1024
WINDOW_ROWS_PER_BATCH: Final = 128


class Encoded(NamedTuple):
    """One whole record batch; the producer stamps its id, the sequence and the CRC."""

    partition: TopicPartition
    batch: bytearray
    count: int  # type: ignore[assignment]  # a tuple has a method of this name


class _Rows(NamedTuple):
    """The columns of an Arrow batch as the kernels see them."""

    key: Column
    value: Column
    headers: Headers


class _Batch:
    """A record batch in the making."""

    __slots__ = ("batch", "end", "length", "rows", "slot", "written")

    def __init__(self, slot: int, rows: Numbers, length: int) -> None:
        self.slot = slot
        self.rows = rows
        self.length = length
        self.batch = bytearray()
        self.written = 0
        self.end = BATCH_HEADER_BYTES

    def make_room(self) -> None:
        self.batch = bytearray(BATCH_HEADER_BYTES + self.length)


class _Topics(NamedTuple):
    """The topics of an Arrow batch: row i belongs to `names[codes[i]]`."""

    names: list[str]
    codes: Numbers
    partitions: Numbers
    slots: Numbers  # where a topic's partitions begin when those of all topics are counted through


class ArrowEncoder:
    """Encodes the Arrow batches of one task.

    Keys choose a partition as Kafka's clients do. Rows without a key go to one partition per Arrow
    batch, the one that has got the least of them, and never twice in a row the same one.
    `sticky_start` says where that begins: tasks should not all begin with partition 0.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        topic: str | None,
        compression: Compression,
        partitions_of: Callable[[str], int],
        batch_bytes: int = BATCH_BYTES,
        now_ms: Callable[[], int],
        sticky_start: int = 0,
        kernels: Any = None,
    ) -> None:
        self._schema = schema
        self._topic = topic
        self._places = find_columns(schema, topic)
        self._compression = compression
        self._partitions_of = partitions_of
        self._batch_bytes = batch_bytes
        self._now_ms = now_ms
        self._sticky = _Sticky(sticky_start)
        self._kernels = kernels or _kernels()

    def encode(self, rows: pa.RecordBatch) -> Iterator[Encoded]:
        """The record batches of these rows; those of a partition in the order of the rows."""
        if rows.num_rows == 0:
            return
        if rows.schema is not self._schema and not rows.schema.equals(self._schema):
            self._places = find_columns(rows.schema, self._topic)
            self._schema = rows.schema
        now_ms = self._now_ms()
        columns = self._columns(rows)
        sizes = np.empty(rows.num_rows, np.int64)
        headers = columns.headers
        self._kernels.measure(
            columns.key.lengths,
            columns.value.lengths,
            headers.starts,
            headers.counts,
            headers.keys.lengths,
            headers.values.lengths,
            sizes,
        )
        topics = self._topics(rows)
        slots = self._slots(rows, topics, columns.key, sizes)
        for group in _groups(self._cut(slots, topics, sizes)):
            self._write(columns, group, sizes)
            for one in group:
                topic = int(np.searchsorted(topics.slots, one.slot, side="right")) - 1
                partition = TopicPartition(topics.names[topic], one.slot - int(topics.slots[topic]))
                yield Encoded(partition, self._finish(one, now_ms), len(one.rows))

    def _columns(self, rows: pa.RecordBatch) -> _Rows:
        places = self._places
        count = rows.num_rows
        return _Rows(
            no_column(count) if places.key < 0 else binary_column(rows.column(places.key), "key"),
            binary_column(rows.column(places.value), "value"),
            no_headers(count) if places.headers < 0 else header_column(rows.column(places.headers)),
        )

    def _topics(self, rows: pa.RecordBatch) -> _Topics:
        if self._topic is not None:
            names, codes = [self._topic], np.zeros(rows.num_rows, np.int64)
        else:
            names, codes = _topic_codes(rows.column(self._places.topic))
        partitions = np.array([self._partitions_of(name) for name in names], np.int64)
        for name, count in zip(names, partitions, strict=True):
            if count < 1:
                raise CannotEncode(f"the topic {name!r} has no partitions to write to")
        return _Topics(names, codes, partitions, np.cumsum(partitions) - partitions)

    def _slots(self, rows: pa.RecordBatch, topics: _Topics, key: Column, sizes: Numbers) -> Numbers:
        """The partition of every row, with the partitions of all topics counted through."""
        if self._places.partition < 0:
            explicit = np.full(rows.num_rows, -1, np.int64)
        else:
            explicit = explicit_partitions(rows.column(self._places.partition))
            _check_partitions(explicit, rows.column(self._places.partition), topics)
        sticky = np.array(
            [
                self._sticky.partition(name, int(count))
                for name, count in zip(topics.names, topics.partitions, strict=True)
            ],
            np.int64,
        )
        loose = np.flatnonzero((explicit < 0) & (key.lengths < 0))
        loads = np.bincount(topics.codes[loose], sizes[loose], len(topics.names))
        for name, chosen, load in zip(topics.names, sticky, loads, strict=True):
            self._sticky.add(name, int(chosen), int(load))
        slots = np.empty(rows.num_rows, np.int64)
        self._kernels.assign(
            *key, explicit, topics.codes, topics.partitions, topics.slots, sticky, slots
        )
        return slots

    def _cut(self, slots: Numbers, topics: _Topics, sizes: Numbers) -> Iterator[_Batch]:
        """The batches, in the order of their slots."""
        rows = len(slots)
        first = np.zeros(int(topics.partitions.sum()) + 1, np.int64)
        order = np.empty(rows, np.int64)
        self._kernels.arrange(slots, first, order)
        begins, batch_slots, lengths = np.empty((3, rows), np.int64)
        room = self._batch_bytes - BATCH_HEADER_BYTES
        count = self._kernels.cut(order, first, sizes, room, begins, batch_slots, lengths)
        ends = [*begins[1:count].tolist(), rows]
        for batch in range(count):
            length = int(lengths[batch])
            if length + BATCH_HEADER_BYTES > BATCH_BYTES_MAX:
                raise CannotEncode(f"a row of {length} bytes is more than a record batch can hold")
            yield _Batch(int(batch_slots[batch]), order[begins[batch] : ends[batch]], length)

    def _write(self, columns: _Rows, batches: list[_Batch], sizes: Numbers) -> None:
        """Writes the records of all batches, a window of the rows after the other.

        A batch has rows from everywhere: one batch after the other, a large Arrow batch would come
        through the processor's cache as often as there are batches.
        """
        for one in batches:
            one.make_room()
        key, value, headers = columns
        row_bytes = sum(one.length for one in batches) // sum(len(one.rows) for one in batches)
        window = max(WINDOW_BYTES // max(row_bytes, 1), WINDOW_ROWS_PER_BATCH * len(batches))
        for end in range(window, len(sizes) + window, window):
            for one in batches:
                until = len(one.rows) if end >= len(sizes) else int(one.rows.searchsorted(end))
                if until == one.written:
                    continue
                one.end = self._kernels.write(
                    one.rows[one.written : until],
                    sizes,
                    *key,
                    *value,
                    headers.starts,
                    headers.counts,
                    *headers.keys,
                    *headers.values,
                    np.frombuffer(one.batch, np.uint8),
                    one.end,
                    one.written,
                )
                if one.end < 0:
                    raise AssertionError(f"{len(one.batch)} bytes are too few for their records")
                one.written = until

    def _finish(self, one: _Batch, now_ms: int) -> bytearray:
        """Compresses the records and puts the header before them."""
        batch, count = one.batch, len(one.rows)
        if one.end != len(batch):
            raise AssertionError(f"records end at {one.end} of {len(batch)} bytes")
        if self._compression:
            with memoryview(batch) as view:
                body = compress(self._compression, view[BATCH_HEADER_BYTES:])
            batch = bytearray(BATCH_HEADER_BYTES)
            batch += body
        header = BatchHeader(
            base_offset=0,
            batch_length=len(batch) - BATCH_OVERHEAD_BYTES,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=int(self._compression),
            last_offset_delta=count - 1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=count,
        )
        write_header(batch, header)
        return batch


def _groups(batches: Iterator[_Batch]) -> Iterator[list[_Batch]]:
    """Batches that are written together: few enough bytes to hold them all."""
    group: list[_Batch] = []
    held = 0
    for one in batches:
        if group and held + one.length > GROUP_BYTES_MAX:
            yield group
            group, held = [], 0
        group.append(one)
        held += one.length
    if group:
        yield group


class _Sticky:
    """Where the rows without a key went, in bytes, so that all partitions get their share."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._loads: dict[str, Numbers] = {}
        self._last: dict[str, int] = {}

    def partition(self, topic: str, count: int) -> int:
        """The least loaded one that was not the last; among equals the next in the round."""
        loads = self._loads.get(topic)
        if loads is None or len(loads) != count:
            loads = np.zeros(count, np.int64)
            self._loads[topic] = loads
        after = (self._last.get(topic, self._start - 1) + 1) % count
        in_turn = np.roll(loads, -after)
        # In the order of the round the last one stands at the end.
        others = in_turn[:-1] if topic in self._last and count > 1 else in_turn
        return (after + int(np.argmin(others))) % count

    def add(self, topic: str, partition: int, load: int) -> None:
        if load:
            self._loads[topic][partition] += load
            self._last[topic] = partition


def _topic_codes(column: pa.Array) -> tuple[list[str], Numbers]:
    """The topics of the rows, and which of them each row is for."""
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise CannotEncode(
            f"row {row} has no topic: fill the column 'topic', or set the option 'topic' for all"
        )
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    encoded = pc.dictionary_encode(column)
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return encoded.dictionary.to_pylist(), codes


def _check_partitions(explicit: Numbers, column: pa.Array, topics: _Topics) -> None:
    bad = np.flatnonzero((explicit == -2) | (explicit >= topics.partitions[topics.codes]))
    if len(bad):
        row = int(bad[0])
        topic = int(topics.codes[row])
        raise CannotEncode(
            f"row {row} asks for partition {column[row].as_py()} of {topics.names[topic]!r},"
            f" which has the partitions 0 to {topics.partitions[topic] - 1}"
        )


def _kernels() -> Any:
    if kernels.is_available():
        from ottla.spark.encoding import rows_numba

        return rows_numba
    from ottla.spark.encoding import rows_numpy

    return rows_numpy
