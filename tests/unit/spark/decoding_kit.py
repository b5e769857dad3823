"""Fetch replies, both decoders, and what a simple reader makes of the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from ottla.spark.columns import READ_COLUMNS, arrow_schema
from ottla.spark.decoding.arrow_buffers import CompiledRows
from ottla.spark.decoding.contract import RowDecoder, Wanted, java_text
from ottla.spark.decoding.decoder import ArrowDecoder
from ottla.spark.decoding.rows_numpy import NumpyRows
from ottla.types import TopicPartition
from ottla.wire.records import (
    Record,
    decode_records,
    encode_batch,
    headers_in,
    read_header,
    seal_batch,
)

NOW_MS = 1_790_000_000_000
FOREVER = 2**62
PARTITION = TopicPartition("orders", 3)

MakeRows = Callable[[Wanted], RowDecoder]
DECODERS: dict[str, MakeRows] = {"numba": CompiledRows, "numpy": NumpyRows}

ABORT, COMMIT = 0, 1


def decoder(
    make_rows: MakeRows,
    start: int = 0,
    end: int = FOREVER,
    columns: Sequence[str] = READ_COLUMNS,
    **options: Any,
) -> ArrowDecoder:
    return ArrowDecoder(PARTITION, start, end, columns, make_rows=make_rows, **options)


def arrow_batches(
    make_rows: MakeRows,
    *fetches: bytes | bytearray,
    aborted: Sequence[tuple[int, int]] = (),
    **options: Any,
) -> list[pa.RecordBatch]:
    """All batches of these fetches, each held to the schema and to Arrow's own rules."""
    reader = decoder(make_rows, **options)
    batches = [batch for data in fetches for batch in reader.feed(data, aborted)]
    batches += reader.finish()
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(
            arrow_schema(options.get("columns", READ_COLUMNS)), check_metadata=True
        )
    return batches


def rows(make_rows: MakeRows, *fetches: bytes | bytearray, **options: Any) -> list[dict[str, Any]]:
    batches = arrow_batches(make_rows, *fetches, **options)
    return [row for batch in batches for row in plain(batch)]


def offsets(make_rows: MakeRows, *fetches: bytes | bytearray, **options: Any) -> list[int]:
    return [row["offset"] for row in rows(make_rows, *fetches, columns=["offset"], **options)]


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python sees them; timestamps as numbers, since not all of them have a date."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "timestamp" in columns:
        columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    return pa.RecordBatch.from_pydict(columns).to_pylist()


def expected(data: bytes | bytearray, start: int = 0, end: int = FOREVER) -> list[dict[str, Any]]:
    """What `decode_records` reads, in the columns of Spark's own Kafka connector."""
    found: list[dict[str, Any]] = []
    for position, header in headers_in(data):
        if header.is_control:
            continue
        for record in decode_records(data, position):
            if not start <= record.offset < end:
                continue
            start = record.offset + 1
            found.append(expected_row(record, header.is_log_append_time))
    return found


def expected_row(record: Record, is_append_time: bool = False) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": PARTITION.topic,
        "partition": PARTITION.partition,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000,
        "timestampType": int(is_append_time),
        "headers": [
            {"key": java_text(name.encode("utf-8", "surrogateescape")), "value": value}
            for name, value in record.headers
        ]
        or None,
    }


def batch(first: int, *values: bytes | None, **options: Any) -> bytearray:
    """A batch with these values, from this offset on."""
    records = [
        Record(first + at, NOW_MS + at, b"k%d" % at, value) for at, value in enumerate(values)
    ]
    return encode_batch(records, base_offset=first, **options)


def marker(offset: int, producer_id: int, kind: int) -> bytearray:
    record = Record(offset, NOW_MS, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return encode_batch(
        [record],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_control=True,
        is_transactional=True,
    )


def joined(parts: Iterable[bytes | bytearray]) -> bytes:
    return b"".join(parts)


def emptied(first: int, last: int) -> bytearray:
    """What compaction leaves of a batch whose records are all gone."""
    header = read_header(batch(first, b"gone"))
    return seal_batch(
        header._replace(count=0, last_offset_delta=last - first, batch_length=49), b""
    )
