"""Looking at a log without a broker: a data directory, a partition's directory or one file.

Nothing is written, created or locked, so that it may run beside a broker and on what is left of a
broken machine. Files are Kafka's or ours. Checkpoints are read before the logs: a broker that runs
meanwhile only moves logs further than their checkpoints say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.errors import OttlaError, StorageFailed
from ottla.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_SIZES,
    RECOVERY_POINTS,
    START_OFFSETS,
    read_offsets,
)
from ottla.log.directory import (
    CLEAN_MARKER,
    DELETE_SUFFIX,
    FORMAT_KEY,
    META_PROPERTIES,
    PARTITION_METADATA,
    STRAY_SUFFIX,
    decode_uuid,
    encode_uuid,
    parse_partition,
)
from ottla.log.inspection.findings import Checked, Finding, Trouble
from ottla.log.inspection.partition_check import (
    METADATA_SNAPSHOT_FILE,
    SEGMENT_FILE,
    PartitionCheck,
    PartitionFacts,
    check_metadata_snapshot,
)
from ottla.log.inspection.walk import ReadableDisk, walk
from ottla.types import INTERNAL_TOPICS, METADATA_TOPIC, TopicPartition

# How far Kafka's cleaner came; a partition that is named there may have gaps.
CLEANED: Final = "cleaner-offset-checkpoint"
_CHECKPOINTS: Final = (RECOVERY_POINTS, START_OFFSETS, HIGH_WATERMARKS, LOG_SIZES, CLEANED)
_CLEANED_TOPICS: Final = INTERNAL_TOPICS


class NothingToInspect(OttlaError):
    """What was named is neither a data directory, nor a partition's, nor a file of one."""


class TopicFacts(NamedTuple):
    """What the metadata log says about a topic."""

    topic_id: bytes
    is_compacted: bool


class Target(NamedTuple):
    """What is to be inspected. `data` and `partition` are None where nothing says so."""

    data: str | None
    partition: str | None = None
    file: str | None = None

    @property
    def topic_partition(self) -> TopicPartition | None:
        return None if self.partition is None else parse_partition(_name(self.partition))


def find_target(disk: ReadableDisk, path: str) -> Target:
    """What `path` is, by its name and by what lies around it."""
    path = path.rstrip("/") or "/"
    name, parent = _name(path), path.rpartition("/")[0]
    if _is_file(disk, path):
        if not (SEGMENT_FILE.fullmatch(name) or METADATA_SNAPSHOT_FILE.fullmatch(name)):
            raise NothingToInspect(
                f"{path} is no file of a log: those are called like "
                "00000000000000000000.log, .index, .timeindex or .snapshot"
            )
        return Target(_data_above(disk, parent), parent, path)
    try:
        names = disk.list(path)
    except FileNotFoundError:
        raise NothingToInspect(f"{path} does not exist") from None
    if any(SEGMENT_FILE.fullmatch(inside) for inside in names) or PARTITION_METADATA in names:
        return Target(_data_above(disk, path), path)
    if META_PROPERTIES in names or any(parse_partition(inside) for inside in names):
        return Target(path)
    raise NothingToInspect(
        f"{path} is neither a data directory (it has no {META_PROPERTIES}) nor a partition's"
    )


def _is_file(disk: ReadableDisk, path: str) -> bool:
    try:
        disk.list(path)
    except NotADirectoryError:
        return True
    except FileNotFoundError:
        return disk.exists(path)
    return False


def _data_above(disk: ReadableDisk, partition: str) -> str | None:
    parent = partition.rpartition("/")[0] or "/"
    return parent if disk.exists(f"{parent}/{META_PROPERTIES}") else None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@dataclass(slots=True)
class Inspection:
    """`topics` is what the metadata log says, None where there is none to ask."""

    disk: ReadableDisk
    target: Target
    topics: Mapping[str, TopicFacts] | None = None
    is_deep: bool = False
    on_bytes: Callable[[int], None] = lambda _: None
    on_partition: Callable[[str], None] = lambda _: None
    _offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    _is_clean: bool = True
    _is_ours: bool = False

    def run(self) -> Iterator[Finding | Checked]:
        """Findings as they are made; `Checked` after those of each partition."""
        findings = list(self._read_surroundings())
        target = self.target
        if target.file is not None and METADATA_SNAPSHOT_FILE.fullmatch(_name(target.file)):
            yield from self._check_lone_snapshot(target.file)
        elif target.partition is not None:
            base = None if target.file is None else int(_name(target.file)[:20])
            yield from self._check_partition(target.partition, base)
        else:
            yield from findings
            yield from self._check_directory()

    def _check_directory(self) -> Iterator[Finding | Checked]:
        assert self.target.data is not None
        data = self.target.data
        names = self.disk.list(data)
        found = {partition: name for name in names if (partition := parse_partition(name))}
        for name in names:
            if name.endswith((DELETE_SUFFIX, "-future")):
                what = "a partition that was deleted or moved"
                yield Finding(Trouble.LEFTOVER, f"{data}/{name}", what)
            elif name.endswith(STRAY_SUFFIX):
                what = "a partition that the metadata did not know when a broker started"
                yield Finding(Trouble.STRAY, f"{data}/{name}", what)
        yield from self._check_topic_ids(found)
        yield from self._check_absent(found)
        for partition in sorted(found):
            yield from self._check_partition(f"{data}/{found[partition]}", None)

    def _check_partition(self, path: str, base: int | None) -> Iterator[Finding | Checked]:
        name = _name(path)
        self.on_partition(name)
        facts = self._facts(parse_partition(name))
        check = PartitionCheck(
            self.disk, path, name, facts, self.on_bytes, self.is_deep, only_base=base
        )
        yield from check.run()

    def _check_lone_snapshot(self, path: str) -> Iterator[Finding | Checked]:
        findings = list(check_metadata_snapshot(self.disk, path))
        yield from findings
        file = self.disk.open(path)
        try:
            size = file.size()
            headers = [
                piece.header
                for piece in walk(file.read, size, 0)
                if piece.header is not None and piece.trouble is None
            ]
        finally:
            file.close()
        records = sum(header.count for header in headers)
        counts = (0, len(headers), records, size, 0, records)
        yield Checked(_name(path), *counts, len(findings), 0)

    # ---------------------------------------------------------------------------- surroundings

    def _read_surroundings(self) -> Iterator[Finding]:
        data = self.target.data
        if data is None:
            return
        self._is_clean = self.disk.exists(f"{data}/{CLEAN_MARKER}")
        try:
            properties = self.disk.read_file(f"{data}/{META_PROPERTIES}")
            self._is_ours = FORMAT_KEY.encode() in properties
        except FileNotFoundError:
            what = "the file is missing, so nobody can tell whose data this is"
            yield Finding(Trouble.CHECKPOINT, f"{data}/{META_PROPERTIES}", what)
        for name in _CHECKPOINTS:
            try:
                self._offsets[name] = self._read(name)
            except StorageFailed as error:
                path = f"{data}/{name}"
                yield Finding(Trouble.CHECKPOINT, path, str(error).removeprefix(f"{path}: "))

    def _read(self, checkpoint: str) -> dict[TopicPartition, int]:
        ids: dict[str, bytes] | None = None
        if self.topics is not None:
            ids = {name: topic.topic_id for name, topic in self.topics.items()}
        return read_offsets(self.disk, f"{self.target.data}/{checkpoint}", ids)

    def _facts(self, partition: TopicPartition | None) -> PartitionFacts:
        if partition is None or self.target.data is None:
            # Alone it cannot be said what was synced: all damage counts.
            return PartitionFacts(may_have_gaps=self._may_have_gaps(partition))
        starts = self._offsets.get(START_OFFSETS)
        is_metadata = partition.topic == METADATA_TOPIC
        return PartitionFacts(
            is_clean=self._is_clean,
            recovery_point=self._offsets.get(RECOVERY_POINTS, {}).get(partition, 0),
            start_offset=None if starts is None or is_metadata else starts.get(partition, 0),
            high_watermark=self._offsets.get(HIGH_WATERMARKS, {}).get(partition),
            may_have_gaps=self._may_have_gaps(partition),
            has_durable_start=self._is_ours,
            start_now=lambda: self._read(START_OFFSETS).get(partition, 0),
            left_bytes=self._offsets.get(LOG_SIZES, {}).get(partition),
        )

    def _may_have_gaps(self, partition: TopicPartition | None) -> bool:
        if partition is None:
            return False
        if partition.topic in _CLEANED_TOPICS or partition in self._offsets.get(CLEANED, {}):
            return True
        topic = (self.topics or {}).get(partition.topic)
        return topic is not None and topic.is_compacted

    def _check_topic_ids(self, found: Mapping[TopicPartition, str]) -> Iterator[Finding]:
        """All partitions of a topic have its id, and it is the one that the metadata log knows."""
        ids: dict[str, dict[bytes, str]] = defaultdict(dict)
        for partition, name in sorted(found.items()):
            path = f"{self.target.data}/{name}/{PARTITION_METADATA}"
            try:
                topic_id = _read_topic_id(self.disk.read_file(path))
            except FileNotFoundError:
                continue
            except ValueError as error:
                yield Finding(Trouble.TOPIC_ID, path, f"it cannot be read: {error}")
                continue
            known = (self.topics or {}).get(partition.topic)
            ids[partition.topic].setdefault(topic_id, path)
            if known is not None and known.topic_id != topic_id:
                what = (
                    f"the directory belongs to a topic with id {encode_uuid(topic_id)}, but "
                    f"{partition.topic} has {encode_uuid(known.topic_id)}"
                )
                yield Finding(Trouble.TOPIC_ID, path, what)
            elif known is None and len(ids[partition.topic]) > 1:
                others = ", ".join(encode_uuid(other) for other in ids[partition.topic])
                what = f"partitions of {partition.topic} have different topic ids: {others}"
                yield Finding(Trouble.TOPIC_ID, path, what)

    def _check_absent(self, found: Mapping[TopicPartition, str]) -> Iterator[Finding]:
        """A partition that was synced once has a directory as long as its topic is there."""
        for partition, offset in self._offsets.get(RECOVERY_POINTS, {}).items():
            start = self._offsets.get(START_OFFSETS, {}).get(partition, 0)
            if partition in found or offset <= start or partition.topic not in (self.topics or {}):
                continue
            what = f"offsets {start} to {offset - 1} were synced, but there is no directory"
            yield Finding(Trouble.SHORT_LOG, f"{self.target.data}/{partition}", what, offset=start)


def _read_topic_id(data: bytes) -> bytes:
    lines = data.decode().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    if fields.get("version") != "0":
        raise ValueError(f"version {fields.get('version')}")
    return decode_uuid(fields.get("topic_id", ""))
