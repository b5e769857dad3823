"""A snapshot of the metadata as a file beside the log, in Kafka's format (KIP-630).

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint

It stands for all records before its end offset, the last of which has that epoch. Inside are record
batches with offsets of their own: a header as a control record, and with it the voters where they
are records (KIP-853); the records; a footer as a control record. A file without its footer, or with
a batch that is not intact, is no snapshot.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from ottla.cluster.framing import encode_record
from ottla.errors import CorruptBatch, PositionOutOfRange, SnapshotNotFound
from ottla.ports import Disk
from ottla.types import LeaderEpoch, Offset
from ottla.wire.codec import MalformedMessage, decode, encode
from ottla.wire.messages.control_records import KRaftVersionRecord, VotersRecord
from ottla.wire.messages.snapshot_records import SnapshotFooterRecord, SnapshotHeaderRecord
from ottla.wire.records import (
    BatchHeader,
    Record,
    crc_matches,
    decode_records,
    encode_batch,
    headers_in,
)
from ottla.wire.schema import Buffer, Message

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

SUFFIX: Final = ".checkpoint"
PARTIAL_SUFFIX: Final = ".checkpoint.part"
OFFSET_DIGITS: Final = 20
EPOCH_DIGITS: Final = 10
CONTROL_KEY: Final = struct.Struct(">hh")
CONTROL_KEY_VERSION: Final = 0
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4
KRAFT_VERSION: Final = 5
KRAFT_VOTERS: Final = 6
FORMAT_VERSION: Final = 0
# Kafka reads no metadata batch above 8 MB; ours are as large as is decoded in a few milliseconds.
BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 1024 * 1024


class DamagedSnapshot(Exception):
    """A file that is not what its writer meant to leave."""


class SnapshotId(NamedTuple):
    """What a snapshot is called; in this order the largest is the newest."""

    end_offset: Offset
    epoch: LeaderEpoch

    def __str__(self) -> str:
        return f"{self.end_offset:0{OFFSET_DIGITS}d}-{self.epoch:0{EPOCH_DIGITS}d}"

    @classmethod
    def of_name(cls, name: str) -> SnapshotId | None:
        """None for a file that is something else."""
        offset, _, epoch = name.removesuffix(SUFFIX).partition("-")
        is_snapshot = (
            name.endswith(SUFFIX)
            and (len(offset), len(epoch)) == (OFFSET_DIGITS, EPOCH_DIGITS)
            and (offset + epoch).isascii()
            and (offset + epoch).isdecimal()
        )
        return cls(Offset(int(offset)), LeaderEpoch(int(epoch))) if is_snapshot else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot in memory: each of `batches` holds records of the metadata log."""

    id: SnapshotId
    last_contained_ms: int
    size: int
    batches: Sequence[memoryview]
    # Both are missing where the voters are a setting (kraft.version 0).
    kraft_version: KRaftVersionRecord | None = None
    voters: VotersRecord | None = None

    @property
    def end_offset(self) -> Offset:
        return self.id.end_offset


# --------------------------------------------------------------------------------- its bytes


def encode_snapshot(
    id: SnapshotId,
    records: Iterable[Message],
    last_contained_ms: int,
    now_ms: int,
    voters: VotersRecord | None = None,
    kraft_version: int = 0,
) -> Iterator[bytearray]:
    """The file's batches, one after the other; `voters` are told from kraft.version 1 on."""
    head: list[tuple[int, Message]] = [
        (SNAPSHOT_HEADER, SnapshotHeaderRecord(FORMAT_VERSION, last_contained_ms))
    ]
    if kraft_version:
        head.append((KRAFT_VERSION, KRaftVersionRecord(FORMAT_VERSION, kraft_version)))
    if voters is not None:
        head.append((KRAFT_VOTERS, voters))
    yield _control_batch(0, id.epoch, now_ms, head)
    offset = len(head)
    for values in _grouped(records):
        batch = [Record(offset + at, now_ms, None, value) for at, value in enumerate(values)]
        yield encode_batch(batch, base_offset=offset, leader_epoch=id.epoch)
        offset += len(values)
    foot = [(SNAPSHOT_FOOTER, SnapshotFooterRecord(FORMAT_VERSION))]
    yield _control_batch(offset, id.epoch, now_ms, foot)


def _grouped(records: Iterable[Message]) -> Iterator[list[bytes]]:
    values: list[bytes] = []
    byte_count = 0
    for record in records:
        value = encode_record(record)
        is_full = len(values) == BATCH_RECORDS_MAX or byte_count + len(value) > BATCH_BYTES_MAX
        if values and is_full:
            yield values
            values, byte_count = [], 0
        values.append(value)
        byte_count += len(value)
    if values:
        yield values


def _control_batch(
    offset: int, epoch: LeaderEpoch, now_ms: int, messages: Sequence[tuple[int, Message]]
) -> bytearray:
    records = []
    for at, (kind, message) in enumerate(messages, start=offset):
        key = CONTROL_KEY.pack(CONTROL_KEY_VERSION, kind)
        records.append(Record(at, now_ms, key, encode(message, FORMAT_VERSION)))
    return encode_batch(records, base_offset=offset, leader_epoch=epoch, is_control=True)


def decode_snapshot(id: SnapshotId, data: bytes) -> Snapshot:
    """Checks every byte; DamagedSnapshot says what is wrong."""
    try:
        batches = _intact_batches(data)
        controls = [_controls(data, *batch) for batch in batches if batch[1].is_control]
        if not batches or not batches[0][1].is_control or SNAPSHOT_HEADER not in controls[0]:
            raise DamagedSnapshot("it does not begin with a header")
        if not batches[-1][1].is_control or SNAPSHOT_FOOTER not in controls[-1]:
            raise DamagedSnapshot("its footer is missing, so it was never finished")
        told = {kind: value for values in controls for kind, value in values.items()}
        header = decode(SnapshotHeaderRecord, told[SNAPSHOT_HEADER], FORMAT_VERSION)
        version = _decoded(KRaftVersionRecord, told.get(KRAFT_VERSION))
        voters = _decoded(VotersRecord, told.get(KRAFT_VOTERS))
    except (CorruptBatch, MalformedMessage) as error:
        raise DamagedSnapshot(str(error)) from error
    view = memoryview(data)
    return Snapshot(
        id,
        header.last_contained_log_timestamp,
        len(data),
        [view[at : at + head.size] for at, head in batches if not head.is_control],
        version,
        voters,
    )


def _decoded(kind: type[M], value: bytes | None) -> M | None:
    return None if value is None else decode(kind, value, FORMAT_VERSION)


def _intact_batches(data: bytes) -> list[tuple[int, BatchHeader]]:
    batches = []
    position = offset = 0
    for position, header in headers_in(data):
        if not crc_matches(data, position, header):
            raise DamagedSnapshot(f"the batch at position {position} does not match its CRC")
        if header.base_offset != offset:
            raise DamagedSnapshot(f"offset {header.base_offset} follows {offset - 1}")
        batches.append((position, header))
        offset = header.next_offset
        position += header.size
    if position != len(data):
        raise DamagedSnapshot(f"it is cut off after position {position}")
    return batches


def _controls(data: bytes, position: int, header: BatchHeader) -> dict[int, bytes]:
    """The values of a batch of control records by their kinds."""
    values: dict[int, bytes] = {}
    for record in decode_records(data, position):
        if record.key is None or len(record.key) < CONTROL_KEY.size:
            raise DamagedSnapshot("a control record has no kind")
        values[CONTROL_KEY.unpack_from(record.key)[1]] = record.value or b""
    return values


# ---------------------------------------------------------------------------------- its files


class SnapshotFiles:
    """The snapshots in the metadata partition's directory. Everything here blocks."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def path(self, id: SnapshotId, suffix: str = SUFFIX) -> str:
        return f"{self._directory}/{id}{suffix}"

    def ids(self) -> list[SnapshotId]:
        """All that are there, whole or not, the oldest first."""
        try:
            names = self._disk.list(self._directory)
        except FileNotFoundError:
            return []
        return sorted(id for name in names if (id := SnapshotId.of_name(name)) is not None)

    def write(self, id: SnapshotId, batches: Iterable[bytearray]) -> int:
        """The snapshot is durable under its name when this returns; says how many bytes it has."""
        scratch = self.path(id, PARTIAL_SUFFIX)
        size = 0
        try:
            file = self._disk.open(scratch, create=True)
            try:
                file.truncate(0)
                for batch in batches:
                    file.write([batch], size)
                    size += len(batch)
                file.sync()
            finally:
                file.close()
            self._disk.rename(scratch, self.path(id))
        except OSError:
            self._disk.remove(scratch)
            raise
        self._disk.sync_directory(self._directory)
        return size

    def write_first(self, voters: VotersRecord | None, now_ms: int) -> None:
        """What a disk is formatted with, as Kafka does it: the voters alone, before any record."""
        id = SnapshotId(Offset(0), LeaderEpoch(0))
        self.write(id, encode_snapshot(id, (), 0, now_ms, voters, kraft_version=1))

    def piece(self, id: SnapshotId, position: int, bytes_max: int) -> tuple[int, Buffer]:
        """The size of the whole, and some of its bytes from there on."""
        try:
            file = self._disk.open(self.path(id))
        except FileNotFoundError:
            raise SnapshotNotFound(f"there is no snapshot {id}") from None
        try:
            size = file.size()
            if not 0 <= position < size:
                raise PositionOutOfRange(f"snapshot {id} has {size} bytes, not {position}")
            return size, file.read(min(bytes_max, size - position), position)
        finally:
            file.close()

    # One that comes from another node, piece by piece.

    def add_piece(self, id: SnapshotId, position: int, data: Buffer) -> None:
        """Nobody takes it for a snapshot yet; the first piece begins it anew."""
        file = self._disk.open(self.path(id, PARTIAL_SUFFIX), create=True)
        try:
            if not position:
                file.truncate(0)
            file.write([data], position)
        finally:
            file.close()

    def check_pieces(self, id: SnapshotId) -> Snapshot:
        """All of it is here: reads it, and syncs it under a name that is still no snapshot's."""
        path = self.path(id, PARTIAL_SUFFIX)
        snapshot = decode_snapshot(id, self._disk.read_file(path))
        file = self._disk.open(path)
        try:
            file.sync()
        finally:
            file.close()
        return snapshot

    def take_pieces(self, id: SnapshotId) -> None:
        """Durable under its name when this returns."""
        self._disk.rename(self.path(id, PARTIAL_SUFFIX), self.path(id))
        self._disk.sync_directory(self._directory)

    def forget_pieces(self, id: SnapshotId) -> None:
        self._disk.remove(self.path(id, PARTIAL_SUFFIX))

    def read(self, id: SnapshotId) -> Snapshot:
        return decode_snapshot(id, self._disk.read_file(self.path(id)))

    def newest(self) -> Snapshot | None:
        """The newest one that is whole; those that are not are logged."""
        for id in reversed(self.ids()):
            try:
                return self.read(id)
            except (DamagedSnapshot, OSError) as error:
                logger.error("%s is passed over: %s", self.path(id), error)
        return None

    def remove(self, ids: Iterable[SnapshotId]) -> None:
        for id in ids:
            self._disk.remove(self.path(id))

    def remove_unfinished(self) -> None:
        for name in self._disk.list(self._directory):
            if name.endswith(PARTIAL_SUFFIX):
                self._disk.remove(f"{self._directory}/{name}")
