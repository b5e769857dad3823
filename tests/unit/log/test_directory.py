"""The data directory: its lock, its owner, its partitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from ottla.broker.storage.disk import RealDisk
from ottla.errors import StorageFailed
from ottla.log.checkpoints import RECOVERY_POINTS, read_offsets, write_offsets
from ottla.log.directory import (
    DataDirectory,
    DataDirectoryInUse,
    Identity,
    IncompatibleDataDirectory,
    encode_uuid,
    parse_partition,
)
from ottla.testing.disks import MemoryDisk
from ottla.types import TopicPartition

ID = bytes(range(16))
ME = Identity("ottla-cluster-0000000", 3, ID)


@pytest.fixture
def data(disk: MemoryDisk) -> DataDirectory:
    return DataDirectory(disk, "/data")


def test_directory_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    data = DataDirectory(RealDisk(), str(tmp_path))
    data.hold()
    script = (
        "import sys\n"
        "from ottla.broker.storage.disk import RealDisk\n"
        "from ottla.log.directory import DataDirectory\n"
        "DataDirectory(RealDisk(), sys.argv[1]).hold()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0
    assert "DataDirectoryInUse" in refused.stderr
    data.release()
    subprocess.run(command, check=True, timeout=60)


def test_lock_is_held_until_released(disk: MemoryDisk, data: DataDirectory) -> None:
    data.hold()
    other = DataDirectory(disk, "/data")
    with pytest.raises(DataDirectoryInUse, match="/data is in use by another process"):
        other.hold()
    data.release()
    other.hold()


def test_identity_is_kept_in_kafkas_file(disk: MemoryDisk, data: DataDirectory) -> None:
    assert data.read_identity() is None
    data.write_identity(ME)
    assert data.read_identity() == ME
    assert disk.read_file("/data/meta.properties") == (
        b"version=1\n"
        b"cluster.id=ottla-cluster-0000000\n"
        b"node.id=3\n"
        b"directory.id=AAECAwQFBgcICQoLDA0ODw\n"
        b"ottla.format.version=1\n"
    )


def test_newer_format_is_refused_with_what_to_do(disk: MemoryDisk, data: DataDirectory) -> None:
    data.write_identity(ME)
    text = disk.read_file("/data/meta.properties")
    newer = text.replace(b"ottla.format.version=1", b"ottla.format.version=2")
    disk.write_file("/data/meta.properties", newer)
    with pytest.raises(IncompatibleDataDirectory, match=r"version=2.*start a newer Ottla"):
        data.read_identity()
    disk.write_file("/data/meta.properties", text.replace(b"version=1\nc", b"version=2\nc"))
    with pytest.raises(IncompatibleDataDirectory):
        data.read_identity()


def test_older_format_is_opened(disk: MemoryDisk, data: DataDirectory) -> None:
    """Kafka's own, with its comment lines; and version 0, where a node was called a broker."""
    kafka = b"#\n#Sat Nov 15 19:05:00 UTC 2025\nnode.id=3\nversion=1\ncluster.id=c\n"
    disk.write_file("/data/meta.properties", kafka)
    assert data.read_identity() == Identity("c", 3, b"")
    disk.write_file("/data/meta.properties", b"version=0\nbroker.id=4\ncluster.id=c\n")
    assert data.read_identity() == Identity("c", 4, b"")


@pytest.mark.parametrize("text", [b"", b"version=1\n", b"version=x\n", b"\xff\xfe", b"node.id=1\n"])
def test_file_that_says_nothing_is_refused(
    disk: MemoryDisk, data: DataDirectory, text: bytes
) -> None:
    disk.write_file("/data/meta.properties", text)
    with pytest.raises(IncompatibleDataDirectory):
        data.read_identity()


def test_marker_of_a_clean_stop_counts_once(disk: MemoryDisk, data: DataDirectory) -> None:
    assert data.take_clean_marker() is None
    data.leave_clean_marker(12)
    assert disk.read_file("/data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":12}'
    assert data.take_clean_marker() == 12
    assert data.take_clean_marker() is None


def test_taken_marker_does_not_come_back_after_a_crash(
    disk: MemoryDisk, data: DataDirectory
) -> None:
    data.leave_clean_marker(1)
    data.take_clean_marker()
    assert not disk.is_durable("/data/.kafka_cleanshutdown")


def test_partition_carries_the_id_of_its_topic(disk: MemoryDisk, data: DataDirectory) -> None:
    partition = TopicPartition("a-topic", 7)
    data.lay_out(partition, ID)
    path = "/data/a-topic-7/partition.metadata"
    assert disk.read_file(path) == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert data.read_topic_id(partition) == ID
    assert data.partitions() == {partition: "/data/a-topic-7"}
    data.settle(partition)
    assert disk.is_durable(path), "durable when it returns"


def test_settling_writes_nothing_where_a_name_was_given_free(
    disk: MemoryDisk, data: DataDirectory
) -> None:
    partition = TopicPartition("t", 0)
    data.lay_out(partition, ID)
    data.doom_partition(partition, ID)
    data.settle(partition)
    assert data.partitions() == {}


def test_torn_partition_metadata_is_no_id(disk: MemoryDisk, data: DataDirectory) -> None:
    partition = TopicPartition("t", 0)
    assert data.read_topic_id(partition) is None
    data.lay_out(partition, ID)
    for torn in (b"", b"version: 0\ntopic_", b"version: 0\ntopic_id: AAEC", bytes(30)):
        disk.write_file("/data/t-0/partition.metadata", torn)
        assert data.read_topic_id(partition) is None


def test_deleted_partition_frees_its_name(disk: MemoryDisk, data: DataDirectory) -> None:
    partition = TopicPartition("t", 0)
    data.lay_out(partition, ID)
    doomed = data.doom_partition(partition, ID)
    assert doomed == f"/data/t-0.{ID.hex()}-delete"
    assert data.partitions() == {}
    assert data.doomed() == [doomed]
    data.lay_out(partition, bytes(16))
    assert data.read_topic_id(partition) == bytes(16)
    disk.remove_tree(doomed)
    assert data.doomed() == []


def test_a_stray_frees_its_name_and_keeps_its_files(disk: MemoryDisk, data: DataDirectory) -> None:
    partition = TopicPartition("t", 0)
    data.lay_out(partition, ID)
    stray = data.set_stray_aside(partition, ID)
    assert stray == f"/data/t-0.{ID.hex()}-stray"
    assert data.partitions() == {}
    assert data.doomed() == [], "nobody removes it"
    assert disk.exists(f"{stray}/partition.metadata")


def test_longest_topic_name_can_be_deleted(disk: MemoryDisk, data: DataDirectory) -> None:
    partition = TopicPartition("x" * 249, 12345)
    data.lay_out(partition, ID)
    name = data.doom_partition(partition, ID).rsplit("/", 1)[1]
    assert len(name) == 255
    assert name.endswith(f"-12345.{ID.hex()}-delete")


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("t-0", TopicPartition("t", 0)),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("__cluster_metadata-0", TopicPartition("__cluster_metadata", 0)),
        ("t", None),
        ("-1", None),
        ("t-", None),
        ("t-x", None),
        ("t-0.abc-delete", None),
        ("t-0.abc-future", None),
        ("meta.properties", None),
    ],
)
def test_directory_names(name: str, partition: TopicPartition | None) -> None:
    assert parse_partition(name) == partition


def test_uuids_are_written_as_kafka_writes_them() -> None:
    assert encode_uuid(bytes(15) + b"\1") == "AAAAAAAAAAAAAAAAAAAAAQ"


def test_offset_checkpoint_is_kafkas_text(disk: MemoryDisk) -> None:
    path = f"/data/{RECOVERY_POINTS}"
    assert read_offsets(disk, path) == {}
    offsets = {TopicPartition("a-topic", 3): 17, TopicPartition("b", 0): 2**40}
    write_offsets(disk, path, offsets)
    assert disk.read_file(path) == b"0\n2\na-topic 3 17\nb 0 1099511627776\n"
    assert read_offsets(disk, path) == offsets


def test_empty_checkpoint_is_no_checkpoint(disk: MemoryDisk) -> None:
    disk.write_file("/data/c", b"")
    assert read_offsets(disk, "/data/c") == {}
    write_offsets(disk, "/data/c", {})
    assert read_offsets(disk, "/data/c") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"1\n0\n",
        b"0\n2\nt 0 1\n",
        b"0\n1\nt 0\n",
        b"0\n1\nt x 1\n",
        b"0\n1\nt 0 y\n",
        b"\xff\xfe\n0\n",
    ],
)
def test_checkpoint_that_lies_is_named(disk: MemoryDisk, text: bytes) -> None:
    disk.write_file("/data/c", text)
    with pytest.raises(StorageFailed, match="/data/c"):
        read_offsets(disk, "/data/c")


def test_topic_made_again_does_not_inherit_the_offsets_of_its_namesake(disk: MemoryDisk) -> None:
    old, other = TopicPartition("t", 0), TopicPartition("u", 3)
    ids = {"t": bytes(16), "u": bytes([1] * 16)}
    write_offsets(disk, "/data/c", {old: 50, other: 7}, ids)
    assert read_offsets(disk, "/data/c", ids) == {old: 50, other: 7}
    assert read_offsets(disk, "/data/c", {**ids, "t": bytes([2] * 16)}) == {other: 7}
    assert read_offsets(disk, "/data/c") == {old: 50, other: 7}, "who does not ask is not told"


def test_checkpoint_without_ids_is_believed_as_kafka_wrote_it(disk: MemoryDisk) -> None:
    name = TopicPartition("t", 0)
    write_offsets(disk, "/data/c", {name: 50})
    assert read_offsets(disk, "/data/c", {"t": bytes(16)}) == {name: 50}


def test_a_new_data_directory_is_there_after_a_crash() -> None:
    disk = MemoryDisk(forgets_directories=True)
    DataDirectory(disk, "/a/b/data").hold()
    for seed in range(100):
        assert disk.after_crash(Random(seed)).exists("/a/b/data")
