"""What the tests of compaction share: histories, jobs, and what a reader makes of a log."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ottla.log.compaction.job import CompactionJob, Source
from ottla.log.compaction.rewrite import Compaction
from ottla.log.compaction.swap import Swap
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.log.markers import Marker
from ottla.ports import Disk
from ottla.wire.records import Record, decode_records, encode_batch, headers_in, read_header
from unit.log.house import NOW_MS, append, read_all, sync

SMALL_MAP_BYTES = 24 * 16
LARGE_MAP_BYTES = 1 << 20
DELETE_RETENTION_MS = 1000
# Segments large enough to be merged into, small enough that a dozen batches fill one.
TINY = LogConfig(segment_bytes=900, index_interval_bytes=100, segment_index_bytes=480)

KeyValue = tuple[bytes | None, bytes | None]


def put(
    log: Log, pairs: Sequence[KeyValue], *, timestamp: int = NOW_MS, epoch: int = 0, **fields: Any
) -> int:
    """Appends one batch with these keys and values; returns its base offset."""
    records = [Record(at, timestamp + at, key, value) for at, (key, value) in enumerate(pairs)]
    return append(log, encode_batch(records, **fields), epoch=epoch, now_ms=timestamp).base_offset


def put_marker(log: Log, producer_id: int, *, is_commit: bool, timestamp: int = NOW_MS) -> int:
    key = struct.pack(">hh", 0, int(is_commit))
    value = struct.pack(">hi", 0, 7)
    batch = encode_batch(
        [Record(0, timestamp, key, value)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1,
        is_control=True,
        is_transactional=True,
    )
    # Also where it ends nothing: others than ours write such markers.
    marker = Marker(int(is_commit), 7)
    header = read_header(batch)
    return log.append(memoryview(batch), header, 0, timestamp, marker=marker).base_offset


def write_and_sync(log: Log, disk: Disk) -> None:
    log.write()
    sync(log, disk)


def job_for(
    log: Log,
    *,
    first_dirty: int | None = None,
    now_ms: int = NOW_MS,
    map_bytes: int = LARGE_MAP_BYTES,
    delete_retention_ms: int = DELETE_RETENTION_MS,
) -> CompactionJob:
    *closed, active = log.segments
    return CompactionJob(
        directory=log.directory,
        sources=[Source(segment.base_offset, segment.size) for segment in closed],
        first_dirty=log.start_offset if first_dirty is None else first_dirty,
        end=active.base_offset,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        segment_bytes=log.config.segment_bytes,
        segment_index_bytes=log.config.segment_index_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        map_bytes=map_bytes,
        producers=log.last_data_of_producers(),
    )


def compact(log: Log, disk: Disk, handles: Handles, **options: Any) -> int:
    """One pass, swapped in; returns how far the log is clean now. The old files go at once."""
    compaction = Compaction(disk, job_for(log, **options))
    for cleaned in compaction.run():
        if cleaned.is_changed:
            for path in Swap(log, handles, cleaned).run():
                disk.remove(path)
    return compaction.cleaned_to


def compact_all(log: Log, disk: Disk, handles: Handles, **options: Any) -> int:
    """As many passes as it takes."""
    end = log.segments[-1].base_offset
    first_dirty = options.pop("first_dirty", log.start_offset)
    while first_dirty < end:
        cleaned_to = compact(log, disk, handles, first_dirty=first_dirty, **options)
        if cleaned_to == first_dirty:
            break
        first_dirty = cleaned_to
    return first_dirty


def records_in(data: bytes) -> list[Record]:
    """Of data batches, aborted or not."""
    return [
        record
        for at, header in headers_in(data)
        if not header.is_control
        for record in decode_records(data, at)
    ]


def committed_in(data: bytes) -> list[Record]:
    """What a consumer with read_committed is given; a transaction without an end is not."""
    waiting: dict[int, list[Record]] = {}
    found: list[Record] = []
    for at, header in headers_in(data):
        records = decode_records(data, at)
        if header.is_control:
            given = waiting.pop(header.producer_id, [])
            if records and struct.unpack(">hh", records[0].key or b"")[1] == 1:
                found += given
        elif header.is_transactional:
            waiting.setdefault(header.producer_id, []).extend(records)
        else:
            found += records
    return sorted(found, key=lambda record: record.offset)


def read_committed(log: Log, max_bytes: int = 300) -> list[Record]:
    """As a consumer does it that believes what it is told of aborted transactions, up to the last
    stable offset; with the marker it forgets that a producer's transaction was one.
    """
    # The broker compacts no segment from the first unstable one on; here nobody holds back, and
    # its place may be another.
    limit = log.position_at((log.first_unstable(log.end_offset) or log.written).offset)
    offset, found = log.start_offset, []
    while offset < limit.offset:
        read = log.read_stable(offset, max_bytes, limit, cached_only=False)
        assert read is not None
        data, told = read
        to_come = sorted((entry.first_offset, entry.producer_id) for entry in told)
        aborted: set[int] = set()
        for at, header in headers_in(data):
            while to_come and to_come[0][0] <= header.last_offset:
                aborted.add(to_come.pop(0)[1])
            if header.is_control:
                aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [one for one in decode_records(data, at) if one.offset >= offset]
            offset = header.next_offset
    return found


def table(records: Sequence[Record]) -> Mapping[bytes, Record]:
    """The final map: the last record of each key, without those that were deleted."""
    last = {record.key: record for record in records if record.key is not None}
    return {key: record for key, record in last.items() if record.value is not None}


def everything(log: Log) -> bytes:
    return read_all(log)
