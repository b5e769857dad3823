"""A data directory: whose it is, how it was left, and which partitions are in it.

meta.properties           Kafka's: version, cluster.id, node.id, directory.id; and our format
.lock                     held while a process works here
.kafka_cleanshutdown      there between a clean stop and the next start
.ottla-reserve            room that is kept for a full disk (`reserve.py`)
topic-N/                  a partition, with its topic's id in partition.metadata
topic-N.<hex>-delete/     a partition that is being removed
topic-N.<hex>-stray/      a partition that the metadata did not know at a start; a person decides
topic-N.<hex>-future/     a copy of a partition that moves here from another directory of its node
topic-N/ottla-moved       there until the directory that it has come from is gone: this one counts
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.errors import OttlaError
from ottla.ports import Disk, File
from ottla.types import TopicPartition

UNKNOWN_EPOCH: Final = -1

META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"
CLEAN_MARKER: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
FUTURE_SUFFIX: Final = "-future"
MOVED: Final = "ottla-moved"
NAME_CHARS_MAX: Final = 255

META_VERSION: Final = 1
# Of what Kafka's formats leave open to us. Raise it when an older Ottla must not open the data.
FORMAT_VERSION: Final = 1
FORMAT_KEY: Final = "ottla.format.version"


class DataDirectoryInUse(OttlaError):
    """Another process holds the lock."""


class IncompatibleDataDirectory(OttlaError):
    """Written by a newer version, or not a data directory."""


class NotPromoted(OSError):
    """A copy has not become the partition's own directory."""


@dataclass(frozen=True, slots=True)
class Identity:
    cluster_id: str
    node_id: int
    directory_id: bytes


class DataDirectory:
    __slots__ = ("_disk", "_lock", "path", "troubles")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._lock: File | None = None
        self.path = path
        # How often something has happened by which a log in it may have come into trouble.
        self.troubles = 0

    def hold(self) -> None:
        """Creates the directory if need be, and keeps other processes out of it."""
        make_durable_directory(self._disk, self.path)
        try:
            self._lock = self._disk.lock(f"{self.path}/{LOCK}")
        except BlockingIOError:
            raise DataDirectoryInUse(
                f"{self.path} is in use by another process: stop that one, "
                "or choose another data directory"
            ) from None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --------------------------------------------------------------------------- whose it is

    def read_identity(self) -> Identity | None:
        """None when nobody has used the directory yet."""
        path = f"{self.path}/{META_PROPERTIES}"
        try:
            text = self._disk.read_file(path).decode("utf-8", "replace")
        except FileNotFoundError:
            return None
        properties = _parse_properties(text)
        self._check_versions(properties)
        try:
            return Identity(
                properties["cluster.id"],
                int(properties["node.id"] if "node.id" in properties else properties["broker.id"]),
                decode_uuid(properties["directory.id"]) if "directory.id" in properties else b"",
            )
        except (KeyError, ValueError) as error:
            raise IncompatibleDataDirectory(f"{path}: missing or malformed {error}") from None

    def write_identity(self, identity: Identity) -> None:
        """Blocking."""
        properties = {
            "version": META_VERSION,
            "cluster.id": identity.cluster_id,
            "node.id": identity.node_id,
            "directory.id": encode_uuid(identity.directory_id),
            FORMAT_KEY: FORMAT_VERSION,
        }
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        self._disk.write_file(f"{self.path}/{META_PROPERTIES}", text.encode())

    def _check_versions(self, properties: Mapping[str, str]) -> None:
        for key, known in (("version", META_VERSION), (FORMAT_KEY, FORMAT_VERSION)):
            found = properties.get(key, "0")
            if not found.isdecimal() or int(found) > known:
                raise IncompatibleDataDirectory(
                    f"{self.path} has {key}={found}, this Ottla knows up to {known}: "
                    "start a newer Ottla, or choose another data directory"
                )

    # ------------------------------------------------------------------------ how it was left

    def take_clean_marker(self) -> int | None:
        """Blocking: the broker epoch that ended cleanly, if it did; the next one has not yet."""
        path = f"{self.path}/{CLEAN_MARKER}"
        if not self._disk.exists(path):
            return None
        try:
            epoch = int(json.loads(self._disk.read_file(path))["brokerEpoch"])
        except (ValueError, KeyError, TypeError):
            epoch = UNKNOWN_EPOCH
        self._disk.remove(path)
        self._disk.sync_directory(self.path)
        return epoch

    def leave_clean_marker(self, broker_epoch: int) -> None:
        """Blocking: every log is closed and synced."""
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self._disk.write_file(f"{self.path}/{CLEAN_MARKER}", content.encode())

    # ------------------------------------------------------------------------ what is in it

    def partitions(self) -> dict[TopicPartition, str]:
        """The directories of the partitions."""
        found = {}
        for name in self._disk.list(self.path):
            partition = parse_partition(name)
            if partition is not None:
                found[partition] = f"{self.path}/{name}"
        return found

    def doomed(self) -> list[str]:
        """Directories that a topic's deletion has left; `remove_tree` is all they need."""
        names = self._disk.list(self.path)
        return [f"{self.path}/{name}" for name in names if name.endswith(DELETE_SUFFIX)]

    def partition_path(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition}"

    def lay_out(self, partition: TopicPartition, topic_id: bytes) -> None:
        """The directory with its topic's id, not durable yet."""
        self._lay_out(self.partition_path(partition), topic_id)

    def _lay_out(self, path: str, topic_id: bytes) -> None:
        self._disk.make_directory(path)
        file = self._disk.open(f"{path}/{PARTITION_METADATA}", create=True)
        try:
            file.write([_partition_metadata(topic_id)], 0)
        finally:
            file.close()

    def settle(self, partition: TopicPartition) -> None:
        """Blocking: what `lay_out` made is durable, unless it has been doomed meanwhile.

        It writes nothing: by now the name may belong to another topic.
        """
        self._settle(self.partition_path(partition))

    def _settle(self, path: str) -> None:
        try:
            file = self._disk.open(f"{path}/{PARTITION_METADATA}")
            try:
                file.sync()
            finally:
                file.close()
            self._disk.sync_directory(path)
        except FileNotFoundError:
            return
        self._disk.sync_directory(self.path)

    def read_topic_id(self, partition: TopicPartition) -> bytes | None:
        """None when a crash came before the file was whole."""
        return self.read_id_in(self.partition_path(partition))

    def read_id_in(self, directory: str) -> bytes | None:
        path = f"{directory}/{PARTITION_METADATA}"
        try:
            lines = self._disk.read_file(path).decode().splitlines()
            fields = dict(line.split(": ", 1) for line in lines)
            return decode_uuid(fields["topic_id"])
        except (FileNotFoundError, UnicodeDecodeError, ValueError, KeyError):
            return None

    def has_segments(self, partition: TopicPartition) -> bool:
        """Whether a batch was ever written there."""
        names = self._disk.list(self.partition_path(partition))
        return any(name.endswith((".log", ".swap")) for name in names)

    def doom_partition(self, partition: TopicPartition, unique: bytes) -> str:
        """Gives its name free at once; the caller removes the returned directory.

        Nothing is synced: should the old name come back after a crash, it comes with an id that no
        topic has any more.
        """
        return self._rename(partition, f"{unique.hex()}{DELETE_SUFFIX}")

    def set_stray_aside(self, partition: TopicPartition, unique: bytes) -> str:
        """Gives its name free; nothing of it is lost."""
        return self._rename(partition, f"{unique.hex()}{STRAY_SUFFIX}")

    # ------------------------------------------------------- partitions that move between disks

    def lay_out_future(self, partition: TopicPartition, topic_id: bytes, unique: bytes) -> str:
        """Blocking: an empty copy, durable, so that a start knows of the move."""
        path = f"{self.path}/{future_name(partition, unique)}"
        self._lay_out(path, topic_id)
        self._settle(path)
        return path

    def futures(self) -> list[tuple[TopicPartition, str]]:
        """The copies that are under way here, and their directories."""
        found = []
        for name in self._disk.list(self.path):
            partition = parse_partition(name.removesuffix(FUTURE_SUFFIX).rpartition(".")[0])
            if name.endswith(FUTURE_SUFFIX) and partition is not None:
                found.append((partition, f"{self.path}/{name}"))
        return found

    def doom_future(self, path: str) -> str:
        """Blocking: no start takes it for a move any more; the caller removes what is returned."""
        doomed = path.removesuffix(FUTURE_SUFFIX) + DELETE_SUFFIX
        self._disk.rename(path, doomed)
        self._disk.sync_directory(self.path)
        return doomed

    def promote(self, path: str, partition: TopicPartition) -> None:
        """Blocking: the copy is the partition's own directory from here on.

        NotPromoted when nothing has happened; after any other error nobody knows what a start
        would find.
        """
        target = self.partition_path(partition)
        if self._disk.exists(target):
            raise NotPromoted(errno.EEXIST, "is in the way of a copy", target)
        try:
            self._disk.rename(path, target)
        except OSError as error:
            if self._disk.exists(target):
                raise
            raise NotPromoted(error.errno, error.strerror, path) from error
        self._disk.sync_directory(self.path)

    def has_moved_here(self, partition: TopicPartition) -> bool:
        """Whether it was copied from another directory, which may still be there."""
        return self._disk.exists(f"{self.partition_path(partition)}/{MOVED}")

    def forget_move(self, partition: TopicPartition) -> None:
        """Blocking: the directory that it has come from is gone, durably."""
        path = self.partition_path(partition)
        self._disk.remove(f"{path}/{MOVED}")
        self._disk.sync_directory(path)

    def _rename(self, partition: TopicPartition, ending: str) -> str:
        suffix = f"-{partition.partition}.{ending}"
        topic = partition.topic[: NAME_CHARS_MAX - len(suffix)]
        renamed = f"{self.path}/{topic}{suffix}"
        self._disk.rename(self.partition_path(partition), renamed)
        return renamed


def make_durable_directory(disk: Disk, path: str) -> None:
    """Blocking: with its parents, and a name that a crash does not take away with all below it."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    if missing:
        disk.make_directory(missing[0])
    for made in reversed(missing):
        # Where others' directories cannot be opened, their owner's care has to do.
        with suppress(PermissionError):
            disk.sync_directory(os.path.dirname(made) or ".")


def parse_partition(name: str) -> TopicPartition | None:
    """`topic-N`; None for anything else, `-delete` and `-stray` directories among it."""
    topic, _, digits = name.rpartition("-")
    if not topic or not digits.isdecimal() or not digits.isascii():
        return None
    return TopicPartition(topic, int(digits))


def future_name(partition: TopicPartition, unique: bytes) -> str:
    return f"{partition}.{unique.hex()}{FUTURE_SUFFIX}"


def _partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def encode_uuid(value: bytes) -> str:
    """As Kafka writes them: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError(f"id {text!r}") from None
    if len(value) != 16:
        raise ValueError(f"id {text!r}")
    return value


def _parse_properties(text: str) -> dict[str, str]:
    properties = {}
    for line in map(str.strip, text.splitlines()):
        if line and line[0] not in "#!":
            key, _, value = line.partition("=")
            properties[key.strip()] = value.strip()
    return properties
