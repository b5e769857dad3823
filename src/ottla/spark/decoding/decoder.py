"""Fetched record batches to Arrow record batches, in bulk.

`ArrowDecoder` looks at the headers of batches: which of them are whole, intact, wanted and
committed. Their records are for one of two decoders: `arrow_buffers.py` around the compiled
kernel of `rows_numba.py`, or `rows_numpy.py` where numba is missing.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from ottla.client.values import Aborted
from ottla.errors import CorruptBatch, InvalidTimestamp, UnsupportedMessageFormat
from ottla.spark import kernels
from ottla.spark.columns import arrow_schema
from ottla.spark.decoding.contract import (
    BASE_OFFSET,
    SPAN_FIELDS,
    DamagedRecord,
    RowDecoder,
    TimestampTooLarge,
    Wanted,
)
from ottla.types import TopicPartition
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    crc_matches,
    decode_records,
    open_records,
    read_header,
)
from ottla.wire.schema import Buffer

# Batches are decoded together up to here, since a call costs as much as some hundred rows, and no
# further, since what the checksum has just read is still in the processor's cache.
GATHERED_BYTES: Final = 512 * 1024

ABORT_MARKER: Final = 0
OFFSET_MAX: Final = 2**63 - 1

_MARKER: Final = struct.Struct(">hh")


class ArrowDecoder:
    """Turns the fetches of one partition, in their order, into the rows of [start, end)."""

    def __init__(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        columns: Sequence[str],
        *,
        read_committed: bool = False,
        make_rows: Callable[[Wanted], RowDecoder] | None = None,
    ) -> None:
        self.position = start
        self._partition = partition
        self._end = end
        self._read_committed = read_committed
        wanted = Wanted(partition, arrow_schema(columns), start, end)
        self._rows = (make_rows or _row_decoder)(wanted)

    def feed(self, records: Buffer, aborted: Aborted = ()) -> Iterator[pa.RecordBatch]:
        """Takes a fetch and yields the Arrow batches that became full; run it to its end.

        `aborted` are the producer ids and first offsets that came with the fetch.
        """
        transactions = _Transactions(aborted)
        gathered = _Gathered(records)
        for pos, stop, header in self._batches(records):
            is_empty = header.count == 0 and stop - pos == BATCH_HEADER_BYTES
            if is_empty or self._is_hidden(records, pos, header, transactions):
                continue
            is_compressed = header.compression != 0
            if not gathered.takes(is_compressed):
                yield from self._decode(gathered)
                gathered = _Gathered(records)
            if is_compressed:
                gathered.add_opened(self._open(records, pos, header), header)
            else:
                gathered.add_plain(pos, stop, header)
        yield from self._decode(gathered)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is left."""
        return self._rows.finish()

    def _batches(self, records: Buffer) -> Iterator[tuple[int, int, BatchHeader]]:
        """Where intact batches begin and stop, up to the end of the range.

        It moves the position, also past batches without a row.
        """
        pos, size = 0, len(records)
        while self.position < self._end:
            if size - pos < BATCH_HEADER_BYTES:
                self._check_rest(records, pos)
                return
            header = read_header(records, pos)
            if header.magic != MAGIC:
                raise self._unknown_format(header.magic)
            if header.batch_length < BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES:
                raise self._corrupt(
                    header.base_offset, f"it says that it has {header.batch_length} bytes"
                )
            stop = pos + header.size
            if stop > size:
                return
            self._check(records, pos, header)
            if header.base_offset >= self._end:
                self.position = self._end
                return
            yield pos, stop, header
            self.position = max(self.position, header.next_offset)
            pos = stop

    def _check_rest(self, records: Buffer, pos: int) -> None:
        """What is too short for a header is cut off, or a message of an old format."""
        if len(records) - pos > MAGIC_AT and memoryview(records)[pos + MAGIC_AT] != MAGIC:
            raise self._unknown_format(memoryview(records)[pos + MAGIC_AT])

    def _check(self, records: Buffer, pos: int, header: BatchHeader) -> None:
        if not crc_matches(records, pos, header):
            raise self._corrupt(header.base_offset, "the CRC does not match")
        offset, last_delta, count = header.base_offset, header.last_offset_delta, header.count
        if offset < 0 or last_delta < 0 or count < 0:
            raise self._corrupt(offset, f"{count} records with a last offset delta of {last_delta}")
        if offset + last_delta >= OFFSET_MAX:
            raise self._corrupt(offset, "it ends after the largest offset")

    def _is_hidden(
        self, records: Buffer, pos: int, header: BatchHeader, transactions: _Transactions
    ) -> bool:
        """Markers are for no reader; of aborted transactions a committed read sees nothing."""
        if self._read_committed and header.producer_id >= 0:
            transactions.begin_up_to(header.last_offset)
            if header.is_control:
                if self._is_abort(records, pos, header):
                    transactions.end(header.producer_id)
            elif header.is_transactional and transactions.is_aborted(header.producer_id):
                return True
        return header.is_control

    def _is_abort(self, records: Buffer, pos: int, header: BatchHeader) -> bool:
        try:
            markers = decode_records(records, pos)
        except CorruptBatch as error:
            raise self._corrupt(header.base_offset, str(error)) from None
        if not markers:
            return False
        key = markers[0].key
        if key is None or len(key) < _MARKER.size:
            raise self._corrupt(header.base_offset, "a transaction marker without a type")
        _, kind = _MARKER.unpack_from(key)
        return bool(kind == ABORT_MARKER)

    def _open(self, records: Buffer, pos: int, header: BatchHeader) -> Buffer:
        try:
            return open_records(records, pos, header)
        except CorruptBatch as error:
            raise self._corrupt(header.base_offset, str(error)) from None

    def _decode(self, gathered: _Gathered) -> Iterator[pa.RecordBatch]:
        spans = gathered.spans
        if not spans:
            return
        try:
            yield from self._rows.add(gathered.data(), spans)
        except DamagedRecord as error:
            raise self._corrupt(spans[error.span * SPAN_FIELDS + BASE_OFFSET], str(error)) from None
        except TimestampTooLarge as error:
            base_offset = spans[error.span * SPAN_FIELDS + BASE_OFFSET]
            raise InvalidTimestamp(
                f"{self._partition}, the batch at offset {base_offset}: {error}"
            ) from None

    def _corrupt(self, offset: int, reason: str) -> CorruptBatch:
        return CorruptBatch(f"{self._partition}, the batch at offset {offset}: {reason}")

    def _unknown_format(self, magic: int) -> CorruptBatch | UnsupportedMessageFormat:
        where = f"{self._partition} at offset {self.position}"
        if 0 <= magic < MAGIC:
            return UnsupportedMessageFormat(
                f"{where}: messages of format {magic}, which brokers wrote before Kafka 0.11; "
                "only record batches (format 2) can be read"
            )
        return CorruptBatch(f"{where}: a batch of magic {magic}")


class _Transactions:
    """Which producers are in an aborted transaction, as a fetch is read from its begin."""

    def __init__(self, aborted: Aborted) -> None:
        self._to_come = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._open: set[int] = set()

    def begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[-1][1] <= offset:
            self._open.add(self._to_come.pop()[0])

    def end(self, producer_id: int) -> None:
        self._open.discard(producer_id)

    def is_aborted(self, producer_id: int) -> bool:
        return producer_id in self._open


class _Gathered:
    """Batches that are decoded in one call: plain ones where they lie, or opened ones joined."""

    def __init__(self, records: Buffer) -> None:
        self.spans: array[int] = array("q")
        self._records = records
        self._opened: list[Buffer] = []
        self._bytes = 0

    def takes(self, is_compressed: bool) -> bool:
        if not self.spans:
            return True
        return self._bytes < GATHERED_BYTES and bool(self._opened) == is_compressed

    def add_plain(self, pos: int, stop: int, header: BatchHeader) -> None:
        self.spans.extend(_span(header, pos + BATCH_HEADER_BYTES, stop))
        self._bytes += stop - pos

    def add_opened(self, data: Buffer, header: BatchHeader) -> None:
        begin = self._bytes
        self._bytes += len(data)
        self._opened.append(data)
        self.spans.extend(_span(header, begin, self._bytes))

    def data(self) -> Buffer:
        if not self._opened:
            return self._records
        return self._opened[0] if len(self._opened) == 1 else b"".join(self._opened)


def _span(header: BatchHeader, begin: int, stop: int) -> tuple[int, ...]:
    """What the decoders are told of a batch: see `contract.py`."""
    is_append_time = header.is_log_append_time
    return (
        begin,
        stop,
        header.count,
        header.base_offset,
        header.last_offset_delta,
        header.max_timestamp if is_append_time else header.base_timestamp,
        not is_append_time,
        is_append_time,
    )


def _row_decoder(wanted: Wanted) -> RowDecoder:
    # Imported when a read begins: planning needs no compiler.
    if kernels.is_available():
        from ottla.spark.decoding.arrow_buffers import CompiledRows

        return CompiledRows(wanted)
    from ottla.spark.decoding.rows_numpy import NumpyRows

    return NumpyRows(wanted)
