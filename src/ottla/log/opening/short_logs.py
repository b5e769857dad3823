"""What a clean stop tells of short logs, all of a data directory in one file.

A log whose active segment has few index entries and few producers would get four files of a few
bytes each: two indexes, a snapshot, its epochs. For ten thousand partitions that is half a minute.
So where many are closed, these have a line here instead, and nothing is written into their
directories. It is believed only where the last segment is as long as the line says; otherwise the
batches are asked, which are few. Kafka does not know the file, and makes its own as it opens a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ottla.errors import StorageFailed
from ottla.log.checkpoints import ReadsFiles, format_lines, parse_lines
from ottla.log.epochs import Entry, Epochs
from ottla.log.index import Indexes
from ottla.log.producer_state import ProducerState
from ottla.log.segment import Segment
from ottla.ports import Disk
from ottla.types import LeaderEpoch, TopicPartition

FILE_NAME: Final = "ottla-short-log-checkpoint"
# What has more of them gets files.
ENTRIES_MAX: Final = 32
PRODUCERS_MAX: Final = 8
_NUMBERS: Final = 7
# Epochs, two indexes, producers; the partition follows.
_TEXTS: Final = 5
_FIELDS: Final = 1 + _TEXTS + _NUMBERS


class ShortLog(NamedTuple):
    """The last segment, where it ends, what its indexes would say, and the leader epochs."""

    base_offset: int
    size: int
    end_offset: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_at: int
    unindexed_bytes: int
    epochs: tuple[Entry, ...]
    offset_entries: bytes
    time_entries: bytes
    producers: bytes

    def indexes(self) -> Indexes:
        indexes = Indexes.decode(self.offset_entries, self.time_entries)
        indexes.is_from_files = bool(self.offset_entries)
        indexes.first_timestamp = self.first_timestamp
        indexes.max_timestamp = self.max_timestamp
        indexes.max_timestamp_at = self.max_timestamp_at
        indexes.unindexed_bytes = self.unindexed_bytes
        return indexes

    def is_about(self, segment: Segment) -> bool:
        return (segment.base_offset, segment.size) == (self.base_offset, self.size)


def short_form(
    active: Segment, end_offset: int, producers: ProducerState, epochs: Epochs
) -> ShortLog | None:
    """None when the log needs files of its own, or needs nothing at all."""
    indexes = active.indexes
    if indexes is None or not active.is_created:
        return None
    if len(indexes.offsets) > ENTRIES_MAX or len(producers) > PRODUCERS_MAX:
        return None
    entries = indexes.tail(0, 0)
    return ShortLog(
        active.base_offset,
        active.size,
        end_offset,
        indexes.first_timestamp,
        indexes.max_timestamp,
        indexes.max_timestamp_at,
        indexes.unindexed_bytes,
        tuple(entry for entry in epochs.entries if entry[1] < end_offset),
        entries.encode_offsets(),
        entries.encode_times(),
        producers.encode() if len(producers) else b"",
    )


def write_short_logs(
    disk: Disk, directory: str, shorts: Iterable[tuple[TopicPartition, ShortLog]]
) -> None:
    """Blocking: the file is replaced as a whole and synced."""
    lines = []
    for name, short in shorts:
        numbers = short[:_NUMBERS]
        texts = [",".join(f"{epoch}:{start}" for epoch, start in short.epochs)]
        texts += [
            data.hex() for data in (short.offset_entries, short.time_entries, short.producers)
        ]
        lines.append((name.topic, *(text or "-" for text in texts), name.partition, *numbers))
    disk.write_file(f"{directory}/{FILE_NAME}", format_lines(lines))


def read_short_logs(disk: ReadsFiles, directory: str) -> Mapping[TopicPartition, ShortLog]:
    """Blocking. A file that cannot be read tells nothing: the logs are asked."""
    try:
        lines = parse_lines(disk, f"{directory}/{FILE_NAME}", field_count=_FIELDS)
        return dict(map(_parse, lines))
    except (StorageFailed, ValueError):
        return {}


def _parse(line: list[str]) -> tuple[TopicPartition, ShortLog]:
    topic, *rest = ("" if field == "-" else field for field in line)
    epochs, *data, partition = rest[:_TEXTS]
    pairs = (entry.split(":") for entry in epochs.split(",") if entry)
    numbers = [int(field) for field in rest[_TEXTS:]]
    starts = tuple((LeaderEpoch(int(epoch)), int(start)) for epoch, start in pairs)
    short = ShortLog._make((*numbers, starts, *map(bytes.fromhex, data)))
    return TopicPartition(topic, int(partition)), short
