"""Reads a range of offsets of one partition, with one fetch ahead of the decoder.

Where one is comes from the batches' headers: offsets may be missing in the log (compaction) or hold
no message (markers of transactions), so records are never counted. A range is over when a batch has
passed its end, and never because an answer was empty: a log's last batch is not compacted away, and
markers come with fetches as all batches do.
"""

from __future__ import annotations

import concurrent.futures
import struct
import time
from collections.abc import Iterator
from typing import Final

from ottla.client.blocking import Blocking, wait_for
from ottla.client.failures import NothingCame, OffsetOutOfRange
from ottla.client.values import Fetched
from ottla.errors import CorruptBatch, MessageTooLarge, UnsupportedMessageFormat
from ottla.types import TopicPartition
from ottla.wire.records import (
    BATCH_LENGTH_MIN,
    BATCH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
)
from ottla.wire.schema import Buffer

FETCH_WAIT_MS: Final = 500
FETCH_BYTES_MAX: Final = 256 * 1024 * 1024
# As long as Spark's connector waits for a record.
PATIENCE_S: Final = 120.0
# What the loop's own deadlines leave over for the thread that waits for them.
GRACE_S: Final = 10.0
_START: Final = struct.Struct(">qiib")


def read_range(
    blocking: Blocking,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    read_committed: bool = False,
    fetch_bytes: int = 4 * 1024 * 1024,
    patience_s: float = PATIENCE_S,
) -> Iterator[Fetched]:
    """The batches from `start` until the position is at or past `end`.

    Raises OffsetOutOfRange when the log no longer has what is wanted, at either end, and
    NothingCame when it has it and nothing was given in `patience_s`.
    """
    reader = _RangeReader(blocking, partition, read_committed, fetch_bytes, patience_s)
    try:
        yield from reader.read(start, end)
    finally:
        reader.close()


def last_whole_batch(records: Buffer, where: object) -> BatchHeader | None:
    """The last batch that is there to its end; `where` is for the error when it is no batch."""
    unpack = _START.unpack_from
    at, last, size_left = 0, -1, len(records)
    while size_left >= _START.size:
        _, length, _, magic = unpack(records, at)
        if magic != MAGIC:
            raise UnsupportedMessageFormat(
                f"{where}: a batch of magic {magic}, only {MAGIC} is read"
            )
        if length < BATCH_LENGTH_MIN:
            raise CorruptBatch(f"{where}: a batch of length {length}")
        size = length + BATCH_OVERHEAD_BYTES
        if size > size_left:
            break
        last = at
        at += size
        size_left -= size
    return None if last < 0 else read_header(records, last)


class _RangeReader:
    def __init__(
        self,
        blocking: Blocking,
        partition: TopicPartition,
        read_committed: bool,
        fetch_bytes: int,
        patience_s: float,
    ) -> None:
        self._blocking = blocking
        self._partition = partition
        self._read_committed = read_committed
        self._fetch_bytes = fetch_bytes
        self._ahead: concurrent.futures.Future[Fetched] | None = None
        settings = blocking.settings
        self._patience_s = patience_s
        # The last try may begin just before the time for tries is over, and find a new connection.
        last_try_s = settings.connect_timeout_s + settings.request_timeout_s
        self._timeout_s = settings.retry_timeout_s + last_try_s + GRACE_S

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None

    def read(self, start: int, end: int) -> Iterator[Fetched]:
        position = start
        moved_s = time.monotonic()
        while position < end:
            fetched = self._take(position)
            last = last_whole_batch(fetched.records, self._partition)
            if last is not None:
                position = self._move(position, last)
                if position < end:
                    self._ask(position)
                yield fetched
                # The time that the caller took is not the broker's.
                moved_s = time.monotonic()
            elif fetched.records:
                self._widen(position)
            else:
                self._wait(fetched, position, end, moved_s)

    def _move(self, position: int, last: BatchHeader) -> int:
        if last.next_offset <= position:
            raise CorruptBatch(
                f"{self._partition}: asked for offset {position}, "
                f"got batches that end at {last.last_offset}"
            )
        return last.next_offset

    def _wait(self, fetched: Fetched, position: int, end: int, moved_s: float) -> None:
        """Nothing came: it is asked again until the time for that is over."""
        if time.monotonic() - moved_s > self._patience_s:
            is_stable = self._read_committed
            visible_end = fetched.last_stable_offset if is_stable else fetched.high_watermark
            if visible_end < end:
                log_start = fetched.log_start_offset
                raise OffsetOutOfRange(self._partition, position, log_start, visible_end)
            raise NothingCame(self._partition, position, visible_end, self._patience_s)
        # A broker in trouble may answer at once.
        time.sleep(self._blocking.settings.retry_backoff_s)

    def _widen(self, position: int) -> None:
        """Only a part of one batch came: old brokers cut what does not fit."""
        if self._fetch_bytes >= FETCH_BYTES_MAX:
            raise MessageTooLarge(
                f"{self._partition}: the batch at {position} is larger than {FETCH_BYTES_MAX} bytes"
            )
        self._fetch_bytes = min(2 * self._fetch_bytes, FETCH_BYTES_MAX)

    def _ask(self, position: int) -> None:
        self._ahead = self._blocking.submit(
            lambda cluster: cluster.fetch(
                self._partition,
                position,
                max_bytes=self._fetch_bytes,
                max_wait_ms=FETCH_WAIT_MS,
                read_committed=self._read_committed,
            )
        )

    def _take(self, position: int) -> Fetched:
        if self._ahead is None:
            self._ask(position)
        assert self._ahead is not None
        future, self._ahead = self._ahead, None
        return wait_for(future, self._timeout_s, f"reading {self._partition} at {position}")
