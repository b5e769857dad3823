"""Kafka's checkpoint files: a version line, a count line, one entry per line.

Kafka knows a topic by its name there. A topic that is deleted and made again would inherit the
offsets of its namesake, so ours have one more entry per topic, `name@id 0 0`: no topic can have
such a name, and Kafka passes it over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from ottla.errors import StorageFailed
from ottla.ports import Disk
from ottla.types import TopicPartition

VERSION: Final = 0
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
# Ours: how long a clean stop left each log, so that a missing file is noticed.
LOG_SIZES: Final = "ottla-log-size-checkpoint"


class ReadsFiles(Protocol):
    def read_file(self, path: str) -> bytes: ...


def read_offsets(
    disk: ReadsFiles, path: str, topic_ids: Mapping[str, bytes] | None = None
) -> dict[TopicPartition, int]:
    """One of the files of a data directory; none yet is an empty one.

    With `topic_ids` what belongs to another topic of the same name is left out.
    """
    offsets: dict[TopicPartition, int] = {}
    namesakes: set[str] = set()
    for topic, partition, offset in parse_lines(disk, path, field_count=3):
        name, at, topic_id = topic.partition("@")
        if not at:
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        elif topic_ids is not None and topic_ids.get(name, b"").hex() != topic_id:
            namesakes.add(name)
    return {name: offset for name, offset in offsets.items() if name.topic not in namesakes}


def write_offsets(
    disk: Disk,
    path: str,
    offsets: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, bytes] | None = None,
) -> None:
    """Blocking: the file is replaced as a whole and synced."""
    entries = [(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
    for topic in dict.fromkeys(tp.topic for tp in offsets):
        topic_id = (topic_ids or {}).get(topic)
        if topic_id is not None:
            entries.append((f"{topic}@{topic_id.hex()}", 0, 0))
    disk.write_file(path, format_lines(entries))


def write_offset(disk: Disk, path: str, partition: TopicPartition, offset: int) -> None:
    """Blocking: one entry is replaced, or added; all others stay as they are."""
    name = [partition.topic, str(partition.partition)]
    entries = [entry for entry in parse_lines(disk, path, field_count=3) if entry[:2] != name]
    disk.write_file(path, format_lines([*entries, [*name, str(offset)]]))


def format_lines(entries: Collection[Sequence[object]]) -> bytes:
    lines = [str(VERSION), str(len(entries)), *(" ".join(map(str, entry)) for entry in entries)]
    return ("\n".join(lines) + "\n").encode()


def parse_lines(disk: ReadsFiles, path: str, field_count: int) -> list[list[str]]:
    """The entries as written; StorageFailed says what is wrong with a file that lies."""
    try:
        text = disk.read_file(path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise StorageFailed(f"{path}: not a checkpoint file") from None
    lines = text.splitlines()
    if len(lines) < 2:
        return []
    if not text.endswith("\n"):
        raise StorageFailed(f"{path}: its last line is cut short")
    if lines[0] != str(VERSION):
        raise StorageFailed(f"{path}: version {lines[0]!r} is unknown, expected {VERSION}")
    entries = [line.split() for line in lines[2:]]
    if lines[1] != str(len(entries)):
        raise StorageFailed(f"{path}: {len(entries)} entries where it says {lines[1]!r}")
    for entry in entries:
        if len(entry) != field_count or not all(map(_is_number, entry[-2:])):
            raise StorageFailed(f"{path}: malformed entry {' '.join(entry)!r}")
    return entries


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()
