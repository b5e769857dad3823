"""The rows of `ottla log dump`: batches, records and entries of the files of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ottla.cli.opening import decoder_for, open_control, plain, readable
from ottla.cluster import framing
from ottla.errors import CorruptBatch
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.log.inspection.index_check import TRANSACTION_ENTRY, entries_of
from ottla.log.inspection.inspection import Target, TopicFacts
from ottla.log.inspection.partition_check import METADATA_SNAPSHOT_FILE, SEGMENT_FILE
from ottla.log.inspection.walk import Piece, ReadableDisk, walk
from ottla.log.producer_state import CorruptSnapshot, snapshot_rows
from ottla.types import METADATA_TOPIC
from ottla.wire.codec import MalformedMessage
from ottla.wire.compression import Compression
from ottla.wire.messages.metadata_records import ConfigRecord, RemoveTopicRecord, TopicRecord
from ottla.wire.records import BatchHeader, Record, decode_records

Row = dict[str, Any]

TOPIC_RESOURCE: Final = 2
CLEANUP_POLICY: Final = "cleanup.policy"


class Wanted(NamedTuple):
    """What of the batches is to be shown."""

    from_offset: int = 0
    opens_records: bool = False


def files_of(disk: ReadableDisk, target: Target, wanted: Wanted) -> Iterator[str]:
    """The files to dump, in the order of their offsets; those before `from_offset` are left out."""
    if target.file is not None:
        yield target.file
        return
    assert target.partition is not None
    bases = sorted(
        name
        for name in disk.list(target.partition)
        if SEGMENT_FILE.fullmatch(name) and name.endswith(".log")
    )
    for name, following in pairwise([*bases, ""]):
        if not following or int(following[:20]) > wanted.from_offset:
            yield f"{target.partition}/{name}"


def dump_file(disk: ReadableDisk, path: str, topic: str | None, wanted: Wanted) -> Iterator[Row]:
    name = path.rpartition("/")[2]
    if METADATA_SNAPSHOT_FILE.fullmatch(name):
        yield from _dump_batches(disk, path, METADATA_TOPIC, 0, wanted)
        return
    base, suffix = int(name[:20]), name[20:]
    if suffix == ".log":
        yield from _dump_batches(disk, path, topic, base, wanted)
    elif suffix == ".index":
        for relative, position in entries_of(disk.read_file(path), OFFSET_ENTRY):
            yield {"type": "index", "offset": base + relative, "position": position}
    elif suffix == ".timeindex":
        for timestamp, relative in entries_of(disk.read_file(path), TIME_ENTRY):
            yield {"type": "time-index", "timestamp": timestamp, "offset": base + relative}
    elif suffix == ".txnindex":
        for _, producer, first, last, stable in entries_of(disk.read_file(path), TRANSACTION_ENTRY):
            row = {"producer_id": producer, "first_offset": first, "last_offset": last}
            yield {"type": "aborted-transaction", **row, "last_stable_offset": stable}
    else:
        yield from _dump_producers(disk.read_file(path))


def _dump_producers(data: bytes) -> Iterator[Row]:
    try:
        rows = list(snapshot_rows(data))
    except CorruptSnapshot as error:
        yield {"type": "damage", "what": f"it cannot be believed: {error}"}
        return
    for id, epoch, sequence, offset, delta, timestamp, coordinator, transaction in rows:
        yield {
            "type": "producer",
            "producer_id": id,
            "producer_epoch": epoch,
            "last_sequence": sequence,
            "first_offset": offset - delta,
            "last_offset": offset,
            "timestamp": timestamp,
            "coordinator_epoch": coordinator,
            "transaction_first_offset": transaction,
        }


def _dump_batches(
    disk: ReadableDisk, path: str, topic: str | None, base: int, wanted: Wanted
) -> Iterator[Row]:
    file = disk.open(path)
    try:
        for piece in walk(file.read, file.size(), base):
            header = piece.header
            if piece.trouble is None and header and header.last_offset < wanted.from_offset:
                continue
            yield _batch_row(piece)
            if wanted.opens_records and header is not None and piece.trouble is None:
                data = memoryview(file.read(header.size, piece.position))
                yield from _record_rows(data, header, topic, wanted.from_offset)
    finally:
        file.close()


def _batch_row(piece: Piece) -> Row:
    header = piece.header
    if piece.trouble is not None or header is None:
        place = {"position": piece.position, "size": piece.size}
        return {"type": "damage", **place, "trouble": piece.trouble, "what": piece.what}
    return {
        "type": "batch",
        "position": piece.position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "append" if header.is_log_append_time else "create",
        "compression": _codec(header.compression),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.base_timestamp if header.has_delete_horizon else None,
        "crc": f"{header.crc:08x}",
    }


def _codec(number: int) -> str:
    return Compression(number).name.lower() if number in set(Compression) else f"codec-{number}"


def _record_rows(
    data: memoryview, header: BatchHeader, topic: str | None, from_offset: int
) -> Iterator[Row]:
    try:
        records = decode_records(data)
    except CorruptBatch as error:
        yield {"type": "damage", "base_offset": header.base_offset, "what": str(error)}
        return
    opened_by = open_control if header.is_control else decoder_for(topic)
    for record in records:
        if record.offset < from_offset:
            continue
        row: Row = {"type": "record", "offset": record.offset, "timestamp": record.timestamp}
        opened = opened_by(record) if opened_by is not None else None
        if opened is None or "unreadable" in opened:
            row |= _bytes_of(record)
        if opened is not None:
            row["opened"] = opened
        yield row


def _bytes_of(record: Record) -> Row:
    row: Row = {"key": readable(record.key), "value": readable(record.value)}
    if record.headers:
        row["headers"] = [{"name": name, "value": readable(v)} for name, v in record.headers]
    return row


# ------------------------------------------------------------------- what the metadata log says


def read_topics(disk: ReadableDisk, data: str | None) -> Mapping[str, TopicFacts] | None:
    """The topics of the metadata log in this data directory; None when there is no such log.

    Damage in it is told by the inspection itself: here it only means that less is known.
    """
    directory = f"{data}/{METADATA_TOPIC}-0"
    if data is None or not disk.exists(directory):
        return None
    names = disk.list(directory)
    snapshots = sorted(name for name in names if METADATA_SNAPSHOT_FILE.fullmatch(name))
    seen = _Topics()
    skipped_to = 0
    if snapshots:
        seen.take_file(disk, f"{directory}/{snapshots[-1]}", 0)
        skipped_to = int(snapshots[-1][:20])
    for name in sorted(name for name in names if SEGMENT_FILE.fullmatch(name)):
        if name.endswith(".log"):
            seen.take_file(disk, f"{directory}/{name}", skipped_to)
    return seen.facts()


class _Topics:
    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._policies: dict[str, str] = {}

    def take_file(self, disk: ReadableDisk, path: str, skipped_to: int) -> None:
        for row in self._values(disk, path, skipped_to):
            try:
                record = framing.decode_record(row)
            except MalformedMessage:
                continue
            if isinstance(record, TopicRecord):
                self._names[record.topic_id] = record.name
            elif isinstance(record, RemoveTopicRecord):
                self._policies.pop(self._names.pop(record.topic_id, ""), None)
            elif isinstance(record, ConfigRecord) and _is_policy(record):
                self._policies[record.resource_name] = record.value or ""

    def _values(self, disk: ReadableDisk, path: str, skipped_to: int) -> Iterator[bytes]:
        try:
            file = disk.open(path)
        except FileNotFoundError:
            return
        try:
            for piece in walk(file.read, file.size(), 0):
                header = piece.header
                if piece.trouble is not None or header is None or header.is_control:
                    continue
                if header.last_offset < skipped_to:
                    continue
                try:
                    for record in decode_records(file.read(header.size, piece.position)):
                        if record.value is not None:
                            yield record.value
                except CorruptBatch:
                    continue
        finally:
            file.close()

    def facts(self) -> dict[str, TopicFacts]:
        return {
            name: TopicFacts(topic_id, "compact" in self._policies.get(name, ""))
            for topic_id, name in self._names.items()
        }


def _is_policy(record: ConfigRecord) -> bool:
    return record.resource_type == TOPIC_RESOURCE and record.name == CLEANUP_POLICY


__all__ = ["Wanted", "dump_file", "files_of", "plain", "read_topics"]
