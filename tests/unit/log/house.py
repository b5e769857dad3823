"""What the tests of the log share: batches to append, logs to append them to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.log.handles import Handles
from ottla.log.log import Appended, Log, LogConfig, LogPosition
from ottla.log.markers import Marker
from ottla.ports import Disk
from ottla.wire.compression import Compression
from ottla.wire.records import Record, encode_batch, headers_in, read_header

NOW_MS = 1_700_000_000_000
DIRECTORY = "/data/t-0"
SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=100, segment_index_bytes=240)


def make_batch(
    count: int = 1,
    *,
    value: bytes = b"value",
    timestamps: Sequence[int] = (NOW_MS,),
    compression: Compression = Compression.NONE,
    **fields: Any,
) -> bytearray:
    """A batch as a producer sends it: offsets from zero."""
    records = [
        Record(offset, timestamps[min(offset, len(timestamps) - 1)], b"k", value)
        for offset in range(count)
    ]
    return encode_batch(records, compression=compression, **fields)


def append(
    log: Log, batch: bytearray | None = None, *, epoch: int = 0, now_ms: int = NOW_MS
) -> Appended:
    batch = make_batch() if batch is None else batch
    return log.append(memoryview(batch), read_header(batch), epoch, now_ms)


def append_many(log: Log, count: int, **fields: Any) -> None:
    for _ in range(count):
        append(log, make_batch(**fields))
    log.write()


def send(
    log: Log,
    sequence: int,
    *,
    count: int = 1,
    producer_id: int = 7,
    producer_epoch: int = 0,
    **fields: Any,
) -> Appended:
    """Appends what an idempotent producer sends."""
    batch = make_batch(
        count,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        **fields,
    )
    return append(log, batch)


def sync(log: Log, disk: Disk) -> None:
    ticket = log.begin_sync()
    if ticket is not None:
        disk.sync_many(ticket.files, ticket.directories)
        log.finish_sync(ticket)


def shorten(log: Log, disk: Disk, offset: int, *, remove: bool = True) -> None:
    """Moves the start, and the files of what has left the log go."""
    for path in log.set_aside(log.delete_before(offset)):
        if remove:
            disk.remove(path)


def open_log(
    disk: Disk,
    config: LogConfig = SMALL,
    *,
    clean: bool = True,
    handles: Handles | None = None,
    now_ms: int = NOW_MS,
    directory: str = DIRECTORY,
    **options: Any,
) -> Log:
    disk.make_directory(directory)
    return Log.open(disk, directory, config, now_ms=now_ms, clean=clean, handles=handles, **options)


def read_all(log: Log, limit: LogPosition | None = None, max_bytes: int = 10_000) -> bytes:
    """Every batch from the start to the limit, by as many reads as it takes."""
    limit = limit or log.written
    offset, found = log.start_offset, b""
    while offset < limit.offset:
        data = log.read(offset, max_bytes, limit, cached_only=False)
        assert data, f"nothing at {offset}, the limit is {limit}"
        for at, header in headers_in(data):
            found += bytes(data[at : at + header.size])
            offset = header.next_offset
    return found


def base_offsets(data: bytes) -> list[int]:
    return [header.base_offset for _, header in headers_in(data)]


def save_progress(log: Log) -> bool:
    """What the broker does in pieces and threads; True when that needs a sync."""
    hints = log.take_hints()
    saving = None if hints is None else log.begin_saving(hints)
    if saving is None:
        return False
    try:
        saving.run()
    finally:
        log.end_saving(saving)
    return True


def end_transaction(
    log: Log,
    kind: int,
    *,
    producer_id: int = 7,
    producer_epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> Appended:
    """Appends the marker of a coordinator."""
    marker = Marker(kind, coordinator_epoch)
    return log.append_marker(producer_id, producer_epoch, marker, 0, NOW_MS, version)


def aborted_in(log: Log, offset: int = 0, max_bytes: int = 1 << 20) -> list[tuple[int, int]]:
    """(producer id, first offset) as a consumer of committed transactions is told them."""
    found = log.read_stable(offset, max_bytes, log.written, cached_only=False)
    assert found is not None
    return [(entry.producer_id, entry.first_offset) for entry in found[1]]
