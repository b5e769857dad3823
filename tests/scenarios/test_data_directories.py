"""Several data directories: where partitions go, where they are found, and when one is lost."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.testing import Broker, BrokerFailed
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from raw_client import RawClient
from records_kit import batch, fetch_request, produce, values_in
from scenarios.in_process import BrokerInside

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def _two(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


def _broker(*directories: Path, **settings: Any) -> Broker:
    """The first is the data directory that the fixture wants; all of them are log.dirs."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Broker({"log.dirs": ",".join(map(str, directories)), **named}, data_dir=directories[0])


def _described(client: RawClient, topics: Any = None) -> dict[str, Any]:
    reply = client.ask(DescribeLogDirsRequest(topics=topics), 4)
    return {result.log_dir: result for result in reply.results}


def _places(client: RawClient) -> dict[tuple[str, int], str]:
    return {
        (topic.name, partition.partition_index): path
        for path, result in _described(client).items()
        for topic in result.topics
        for partition in topic.partitions
    }


def _partitions_in(client: RawClient, directory: Path, topic: str) -> list[int]:
    places = _places(client).items()
    return sorted(i for (name, i), path in places if name == topic and path == str(directory))


def _metadata(client: RawClient, topic: str) -> dict[int, Any]:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    return {p.partition_index: p for p in client.ask(request, 9).topics[0].partitions}


def _fetch(client: RawClient, topic: str, partition: int) -> Any:
    return client.ask(fetch_request(topic, {partition: 0}), 12).responses[0].partitions[0]


def _fill(client: RawClient, topic: str, count: int) -> None:
    for index in range(count):
        assert produce(client, topic, batch(b"%d" % index), partition=index).error_code == 0


def test_partitions_are_spread_and_found_again_where_they_lie(tmp_path: Path) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a, b) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("t", 10)
        before = _places(client)
        assert len(_partitions_in(client, a, "t")) == len(_partitions_in(client, b, "t")) == 5
        _fill(client, "t", 10)
    assert (a / ".kafka_cleanshutdown").exists()
    assert (b / ".kafka_cleanshutdown").exists()
    with _broker(a, b) as broker:
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert _places(client) == before
            for index in range(10):
                assert values_in(_fetch(client, "t", index).records) == [b"%d" % index]
    for index in range(10):
        assert (Path(before["t", index]) / f"t-{index}" / "partition.metadata").exists()
    ids = [(d / "meta.properties").read_text().splitlines() for d in (a, b)]
    differing = {line.partition("=")[0] for line in set(ids[0]) ^ set(ids[1])}
    assert differing == {"directory.id"}


def test_a_thousand_partitions_at_once_do_not_all_go_to_one_directory(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in "abc"]
    with BrokerInside(*directories) as broker:
        broker.create_topic("many", 1000)
        with RawClient(broker.bootstrap) as client:
            counts = [len(_partitions_in(client, each, "many")) for each in directories]
    assert sum(counts) == 1000
    assert max(counts) - min(counts) <= 10


def test_describe_log_dirs_tells_sizes_room_and_only_what_was_asked_for(tmp_path: Path) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a, b) as broker:
        broker.create_topic("t", 2)
        with RawClient(broker.bootstrap) as client:
            for index in range(2):
                produce(client, "t", batch(b"x" * 5000 * (index + 1)), partition=index)
            for path, result in _described(client).items():
                usage = shutil.disk_usage(path)
                assert result.error_code == 0
                assert result.total_bytes == usage.total
                assert 0 < result.usable_bytes <= usage.total
                for partition in result.topics[0].partitions:
                    log = Path(path, f"t-{partition.partition_index}", f"{0:020d}.log")
                    assert partition.partition_size == log.stat().st_size > 5000
                    assert not partition.is_future_key
            only = _described(client, [DescribableLogDirTopic("t", [1])])
            sizes = [len(t.partitions) for result in only.values() for t in result.topics]
            assert sizes == [1]
            none = _described(client, [DescribableLogDirTopic("t", [])])
            assert not any(result.topics for result in none.values())


def test_a_directory_may_be_added_at_a_restart_and_the_order_does_not_matter(
    tmp_path: Path,
) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a) as broker:
        broker.create_topic("old", 3)
        with RawClient(broker.bootstrap) as client:
            _fill(client, "old", 3)
    with BrokerInside(b, a) as broker, RawClient(broker.bootstrap) as client:
        assert _partitions_in(client, a, "old") == [0, 1, 2]
        broker.create_topic("new", 4)
        assert _partitions_in(client, b, "new")
        assert values_in(_fetch(client, "old", 2).records) == [b"2"]
    assert (a / "__cluster_metadata-0").exists()
    assert not (b / "__cluster_metadata-0").exists()


def test_the_metadata_log_may_have_a_directory_of_its_own(tmp_path: Path) -> None:
    a, b = _two(tmp_path)
    metadata = tmp_path / "metadata"
    for is_first in (True, False):
        with (
            BrokerInside(a, b, metadata_log_dir=metadata) as broker,
            RawClient(broker.bootstrap) as client,
        ):
            if is_first:
                broker.create_topic("t", 4)
                _fill(client, "t", 4)
            assert set(_described(client)) == {str(a), str(b)}
            assert values_in(_fetch(client, "t", 3).records) == [b"3"]
    assert (metadata / "__cluster_metadata-0").exists()
    with pytest.raises(BrokerFailed, match=r"metadata\.log\.dir") as refused:
        _broker(a, b, metadata_log_dir=a).__enter__()
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("is_seen_as", ["a file", "an empty mount point"])
def test_a_directory_that_is_missing_takes_only_its_partitions_offline(
    tmp_path: Path, is_seen_as: str
) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 6)
        _fill(client, "t", 6)
        lost, kept = _partitions_in(client, b, "t"), _partitions_in(client, a, "t")
        assert lost
        assert kept
    b.rename(tmp_path / "away")
    if is_seen_as == "a file":
        b.write_text("not a directory")
    else:
        b.mkdir()
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        known = _metadata(client, "t")
        for index in lost:
            assert known[index].error_code == ErrorCode.LEADER_NOT_AVAILABLE
            assert (known[index].leader_id, known[index].offline_replicas) == (-1, [1])
            assert produce(client, "t", batch(b"x"), partition=index).error_code == STORAGE_ERROR
            assert _fetch(client, "t", index).error_code == STORAGE_ERROR
        for index in kept:
            assert (known[index].leader_id, known[index].offline_replicas) == (1, [])
            assert produce(client, "t", batch(b"more"), partition=index).base_offset == 1
        described = _described(client)
        is_offline = is_seen_as == "a file"
        assert described[str(a)].error_code == 0
        assert described[str(b)].error_code == (STORAGE_ERROR if is_offline else 0)
        assert described[str(b)].topics == []
        broker.create_topic("since", 2)
        _fill(client, "since", 2)
        since = set(_partitions_in(client, b, "since"))
        assert bool(since) is not is_offline
    if is_seen_as == "a file":
        b.unlink()
    else:
        b.rename(tmp_path / "mount point")
    (tmp_path / "away").rename(b)
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        assert all(p.leader_id == 1 for p in _metadata(client, "t").values())
        for index in lost:
            assert values_in(_fetch(client, "t", index).records) == [b"%d" % index]
        offline = {i for i, p in _metadata(client, "since").items() if p.leader_id == -1}
        assert offline == since, "those were under the mount point"


def test_without_the_metadata_log_nothing_is_started_and_nothing_removed(tmp_path: Path) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 4)
        _fill(client, "t", 4)
    a.rename(tmp_path / "away")
    before = sorted(b.rglob("*.log"))
    with pytest.raises(BrokerFailed, match="metadata log") as refused:
        _broker(a, b).__enter__()
    assert "Traceback" not in str(refused.value)
    assert before
    assert sorted(b.rglob("*.log")) == before


def test_a_partition_in_two_directories_is_refused(tmp_path: Path) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 1)
        _fill(client, "t", 1)
    here, there = (a, b) if (a / "t-0").exists() else (b, a)
    shutil.copytree(here / "t-0", there / "t-0")
    with pytest.raises(BrokerFailed, match="t-0 is in") as refused:
        _broker(a, b).__enter__()
    assert "Traceback" not in str(refused.value)
    shutil.rmtree(there / "t-0")
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        assert values_in(_fetch(client, "t", 0).records) == [b"0"]


@pytest.mark.parametrize("case", ["cluster", "copy", "twice"])
def test_directories_that_do_not_belong_together_are_refused(tmp_path: Path, case: str) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a):
        pass
    if case == "cluster":
        with BrokerInside(b):
            pass
        expected = "belongs to the cluster"
    elif case == "copy":
        b.mkdir()
        shutil.copy(a / "meta.properties", b)
        expected = "same directory.id"
    else:
        b.symlink_to(a)
        expected = "twice"
    with pytest.raises(BrokerFailed, match=expected) as refused:
        _broker(a, b).__enter__()
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("operation", ["sync", "write", "open"])
def test_a_disk_that_fails_takes_only_its_own_partitions(tmp_path: Path, operation: str) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a, b) as broker:
        broker.create_topic("t", 6)
        broker.create_topic("fresh", 6)
        with RawClient(broker.bootstrap) as client:
            _fill(client, "t", 6)
            lost, kept = _partitions_in(client, b, "t"), _partitions_in(client, a, "t")
            broker.disk.fail(operation, errno.EIO, under=str(b))
            topic = "fresh" if operation == "open" else "t"
            first = _partitions_in(client, b, topic)[0]
            assert produce(client, topic, batch(b"no"), partition=first).error_code == STORAGE_ERROR
            for index in lost:
                assert _fetch(client, "t", index).error_code == STORAGE_ERROR
                refused = produce(client, "t", batch(b"no"), partition=index)
                assert refused.error_code == STORAGE_ERROR
            for index in kept:
                assert produce(client, "t", batch(b"yes"), partition=index).base_offset == 1
                assert values_in(_fetch(client, "t", index).records) == [b"%d" % index, b"yes"]
            described = _described(client)
            assert (described[str(a)].error_code, described[str(b)].error_code) == (
                0,
                STORAGE_ERROR,
            )
            assert described[str(b)].total_bytes == -1
            status, facts = broker.readiness()
            assert status == 503
            assert str(b) in str(facts)
            while _metadata(client, "t")[lost[0]].leader_id != -1:
                continue
            known = _metadata(client, "t")
            assert all(known[index].offline_replicas == [1] for index in lost)
            assert all(known[index].leader_id == 1 for index in kept)
            broker.create_topic("since", 2)
            _fill(client, "since", 2)
    with BrokerInside(a, b) as restarted, RawClient(restarted.bootstrap) as client:
        for index in lost:
            assert _metadata(client, "t")[index].leader_id == 1
            assert values_in(_fetch(client, "t", index).records)[0] == b"%d" % index
        for index in kept:
            assert values_in(_fetch(client, "t", index).records) == [b"%d" % index, b"yes"]


def test_a_topic_in_a_failed_directory_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    a, b = _two(tmp_path)
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 4)
        _fill(client, "t", 4)
        lost = _partitions_in(client, b, "t")
        broker.disk.fail("sync", errno.EIO, under=str(b))
        assert produce(client, "t", batch(b"no"), partition=lost[0]).error_code == STORAGE_ERROR
        deletion = DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000)
        assert client.ask(deletion, 5).responses[0].error_code == 0
        broker.create_topic("t", 4)
        assert _partitions_in(client, a, "t") == [0, 1, 2, 3]
        for index in range(4):
            assert produce(client, "t", batch(b"anew"), partition=index).base_offset == 0
    assert list(b.glob("t-*/*.log")), "nobody could remove them"
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        for index in range(4):
            assert values_in(_fetch(client, "t", index).records) == [b"anew"]
        assert _partitions_in(client, b, "t") == []
    assert not list(b.glob("t-?")), "they are another topic's than the one of that name now"


def test_when_the_last_directory_fails_the_broker_says_so_and_ends(tmp_path: Path) -> None:
    script = f"""
import sys, threading
from ottla.broker.storage.disk import RealDisk
from ottla.broker.process import run
from ottla.cli.failures import CommandFailed
from ottla.config import BrokerConfig
from ottla.errors import OttlaError
from ottla.testing.disks import FaultyDisk
disk = FaultyDisk(RealDisk())
config = BrokerConfig.parse({{
    "log.dirs": "{tmp_path}/a,{tmp_path}/b", "metadata.log.dir": "{tmp_path}/m",
    "listeners": "PLAINTEXT://127.0.0.1:0", "http.listener": "",
}})
def fail():
    for line in sys.stdin:
        disk.fail("sync", under=line.strip())
threading.Thread(target=fail, daemon=True).start()
try:
    sys.exit(run(config, lambda info: print(info.kafka, flush=True), disk))
except OttlaError as error:
    print(error, flush=True)
    sys.exit(1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        bootstrap = process.stdout.readline().strip()
        try:
            with RawClient(bootstrap) as client:
                from ottla.testing.topics import create_topic

                create_topic(bootstrap, "t", 2, {})
                _fill(client, "t", 2)
                for directory in (tmp_path / "a", tmp_path / "b"):
                    (index,) = _partitions_in(client, directory, "t")
                    process.stdin.write(f"{directory}\n")
                    process.stdin.flush()
                    while not produce(client, "t", batch(b"x"), partition=index).error_code:
                        continue
            assert process.wait(30) == 1
            assert "all data directories have failed" in process.stdout.read()
        finally:
            process.kill()
