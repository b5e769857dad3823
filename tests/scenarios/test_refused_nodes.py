"""Nodes that are not let in stop with a line that says what to do, and leave nothing half done."""

from __future__ import annotations

import base64
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.broker.clock import SystemClock
from ottla.broker.main import Broker as InnerBroker
from ottla.broker.storage.disk import RealDisk
from ottla.cluster.features import METADATA_VERSION
from ottla.config import BrokerConfig
from ottla.log.directory import CLEAN_MARKER, META_PROPERTIES, DataDirectory, Identity
from ottla.machine import Decision
from ottla.testing import Broker, BrokerFailed, Cluster
from ottla.testing.ports import free_ports
from ottla.types import Now
from ottla.wire.messages.metadata_records import FeatureLevelRecord
from scenarios.in_process import BrokerInside
from scenarios.polling import until

WAIT_S = 90.0


def new_id() -> str:
    return base64.urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode()[:22]


def refused(settings: dict[str, object], data_dir: Path, cluster_id: str | None = None) -> str:
    """The last line of a node that does not start."""
    options = [f"--set={name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(data_dir), *options]
    command += ["--set=http.listener="]
    if cluster_id is not None:
        command += ["--cluster-id", cluster_id]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode not in (0, None), ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("ottla: ")]
    assert len(lines) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    return lines[0]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker under one controller."""
    with Cluster(nodes=1, controllers=1, data_dir=tmp_path_factory.mktemp("cluster")) as running:
        yield running


def cluster_id_of(directory: Path) -> str:
    lines = (directory / META_PROPERTIES).read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("cluster.id="))


def broker_settings(cluster: Cluster, **changes: object) -> dict[str, object]:
    return {
        "node.id": 7,
        "process.roles": "broker",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": cluster[2].bootstrap,
        **{name.replace("_", "."): value for name, value in changes.items()},
    }


def test_a_node_of_another_cluster(cluster: Cluster, tmp_path: Path) -> None:
    line = refused(broker_settings(cluster), tmp_path / "7", new_id())
    assert f"The node at {cluster[2].bootstrap} belongs to another cluster" in line


def test_a_node_without_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    line = refused(broker_settings(cluster), tmp_path / "7")
    assert "ottla storage format --cluster-id ID --node-id 7" in line
    assert not (tmp_path / "7" / META_PROPERTIES).exists()


def test_the_second_node_of_one_id_is_told_where_the_first_is(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = cluster_id_of(cluster[1].data_dir)
    line = refused(broker_settings(cluster, node_id=1), tmp_path / "1", own)
    assert f"Broker 1 is already running at {cluster[1].bootstrap}; give this one another" in line
    cluster[1].check_alive()


def test_a_list_of_voters_that_disagrees(cluster: Cluster, tmp_path: Path) -> None:
    own, third = cluster_id_of(cluster[1].data_dir), free_ports(1)[0]
    voters = f"2@{cluster[2].bootstrap},3@127.0.0.1:{third}"
    settings = broker_settings(cluster, controller_quorum_voters=voters)
    line = refused(settings, tmp_path / "7", own)
    assert f"names 2, 3 here, and 2 at node 2, which leads ({cluster[2].bootstrap})" in line
    assert "give all nodes the same list" in line


def test_the_directory_of_another_node(cluster: Cluster, tmp_path: Path) -> None:
    own = cluster_id_of(cluster[1].data_dir)
    with Broker(broker_settings(cluster), data_dir=tmp_path / "7", cluster_id=own):
        pass
    line = refused(broker_settings(cluster, node_id=8), tmp_path / "7")
    assert "belongs to node 7, not to node 8: start with --node-id 7" in line
    assert (tmp_path / "7" / CLEAN_MARKER).exists()


def test_a_copy_of_another_nodes_directory(cluster: Cluster, tmp_path: Path) -> None:
    own = cluster_id_of(cluster[1].data_dir)
    with Broker(broker_settings(cluster), data_dir=tmp_path / "7", cluster_id=own):
        copy = tmp_path / "8"
        copy.mkdir()
        identity = (tmp_path / "7" / META_PROPERTIES).read_text()
        (copy / META_PROPERTIES).write_text(identity.replace("node.id=7", "node.id=8"))
        line = refused(broker_settings(cluster, node_id=8), copy)
    assert "has the id of another broker's, was it copied?" in line
    told = "A data directory of broker 8 is that of broker 7 (127.0.0.1:"
    assert told in cluster[2].log_text()


def test_a_directory_of_a_newer_format(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copytree(cluster[1].data_dir, tmp_path / "1")
    identity = tmp_path / "1" / META_PROPERTIES
    newer = identity.read_text().replace("ottla.format.version=1", "ottla.format.version=99")
    identity.write_text(newer)
    line = refused(broker_settings(cluster, node_id=1), tmp_path / "1")
    assert "ottla.format.version=99, this Ottla knows up to 1: start a newer Ottla" in line


def test_a_refused_start_leaves_a_clean_node_clean(cluster: Cluster, tmp_path: Path) -> None:
    """The marker of its clean stop is its proof that it may lead; it is needed once more."""
    own = cluster_id_of(cluster[1].data_dir)
    settings = broker_settings(cluster, node_id=9)
    with Broker(settings, data_dir=tmp_path / "9", cluster_id=own):
        pass
    marker = tmp_path / "9" / CLEAN_MARKER
    left = marker.read_bytes()
    taken = broker_settings(cluster, node_id=9, listeners=f"PLAINTEXT://{cluster[1].bootstrap}")
    assert "the port is taken" in refused(taken, tmp_path / "9")
    assert marker.read_bytes() == left
    voters = f"2@{cluster[2].bootstrap},3@127.0.0.1:1"
    differing = broker_settings(cluster, node_id=9, controller_quorum_voters=voters)
    assert "give all nodes the same list" in refused(differing, tmp_path / "9")
    assert marker.read_bytes() == left
    with Broker(settings, data_dir=tmp_path / "9"):
        assert not marker.exists()


def test_a_node_alone_that_finds_its_port_taken_stays_clean(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "a") as first:
        pass
    marker = tmp_path / "a" / CLEAN_MARKER
    left = marker.read_bytes()
    with Broker() as second:
        settings = {"listeners": f"PLAINTEXT://{second.bootstrap}"}
        assert "the port is taken" in refused(settings, tmp_path / "a")
        assert marker.read_bytes() == left
    first.start()
    try:
        assert "not closed cleanly" not in first.log_text()
        assert not marker.exists()
    finally:
        first.close()


def test_more_replicas_than_brokers(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "ottla", "topics", "create", "wide", "-b", cluster.bootstrap]
    command += ["--replication-factor", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == 1
    assert "3 time(s): only 1 broker(s) are available" in ended.stderr


def test_more_replicas_in_sync_than_there_are(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "ottla", "topics", "create", "strict", "-b", cluster.bootstrap]
    command += ["--set", "min.insync.replicas=2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == 1
    assert "min.insync.replicas is 2 and the replication factor 1, so no write" in ended.stderr
    assert "lower the one or raise the other" in ended.stderr


def test_a_node_that_is_told_to_stop_while_it_waits_stays_clean(tmp_path: Path) -> None:
    first, second = free_ports(2)
    voters = f"1@127.0.0.1:{first},2@127.0.0.1:{second}"
    settings = {"node.id": 1, "controller.quorum.voters": voters}
    settings["listeners"] = f"PLAINTEXT://127.0.0.1:{first}"
    home = tmp_path / "1"
    alone = {**settings, "controller.quorum.voters": f"1@127.0.0.1:{first}"}
    with Broker(alone, data_dir=home):
        pass
    left = (home / CLEAN_MARKER).read_bytes()
    waiting = Broker(settings, data_dir=home, ready_timeout_s=1)
    with pytest.raises(BrokerFailed, match="not ready"):
        waiting.start()
    until(lambda: "waiting for a majority" in waiting.log_text(), "it waits for nobody")
    assert waiting.stop() == 0
    assert (home / CLEAN_MARKER).read_bytes() == left
    waiting.close()


class WrongClock(SystemClock):
    """A wall clock that is ten minutes slow."""

    def now(self) -> Now:
        return super().now()._replace(wall_ms=self.wall_ms())

    def wall_ms(self) -> int:
        return super().wall_ms() - 600_000


def test_a_clock_that_is_off_is_told_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerInside(tmp_path / "1") as first:
        identity = Identity(first.node._stores.cluster_id, 2, b"2" * 16)
        (tmp_path / "2").mkdir()
        DataDirectory(RealDisk(), str(tmp_path / "2")).write_identity(identity)
        settings = {
            "node.id": "2",
            "process.roles": "broker",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": first.bootstrap,
            "log.dirs": str(tmp_path / "2"),
            "listeners": "127.0.0.1:0",
            "http.listener": "",
        }

        async def start_and_stop() -> None:
            second = InnerBroker(BrokerConfig.parse(settings), clock=WrongClock())
            await second.start()
            await second.stop()

        first.call(start_and_stop())
    assert re.search(r"clock of this node is \d+ s slow, by that of node 1", caplog.text)


def test_a_log_of_a_newer_level(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as newer:
        level = FeatureLevelRecord(name=METADATA_VERSION, feature_level=99)

        async def raise_beyond() -> None:
            await newer.node._controller.submit(
                lambda machine, now, ticket: Decision([level], [(ticket, None)])
            )

        newer.call(raise_beyond())
    left = (tmp_path / CLEAN_MARKER).read_bytes()
    line = refused({"listeners": "127.0.0.1:0"}, tmp_path)
    assert "The metadata log is of metadata.version 99, and this version of Ottla reads 21" in line
    assert (tmp_path / CLEAN_MARKER).read_bytes() == left


def test_of_three_voters_those_that_do_not_belong_stop_and_the_others_go_on(tmp_path: Path) -> None:
    ports = dict(zip((1, 2, 3), free_ports(3), strict=True))
    voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in ports.items())
    own, other = new_id(), new_id()

    def node(node_id: int) -> Broker:
        settings = {"node.id": node_id, "controller.quorum.voters": voters}
        home, port = tmp_path / str(node_id), ports[node_id]
        return Broker(settings, data_dir=home, port=port, cluster_id=own, ready_timeout_s=WAIT_S)

    first, second = node(1), node(2)
    with ThreadPoolExecutor(2) as both:
        for started in [both.submit(first.start), both.submit(second.start)]:
            started.result()
    try:
        settings = {"node.id": 3, "controller.quorum.voters": voters}
        settings["listeners"] = f"PLAINTEXT://127.0.0.1:{ports[3]}"
        line = refused(settings, tmp_path / "3", other)
        assert "belongs to another cluster than this one's data directory" in line
        settings = {"node.id": 2, "controller.quorum.voters": voters, "listeners": "127.0.0.1:0"}
        line = refused(settings, tmp_path / "two again", own)
        assert second.bootstrap in line
        assert "give this one another node.id" in line
        first.check_alive()
        second.check_alive()
        first.create_topic("still-there")
    finally:
        first.close()
        second.close()


def test_the_second_controller_of_one_id_is_told_where_the_first_is(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The first leads the metadata log: nobody may follow it under its own number."""
    own = cluster_id_of(cluster[2].data_dir)
    settings = {
        "node.id": 2,
        "process.roles": "broker",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": cluster[2].bootstrap,
        "listeners": "127.0.0.1:0",
    }
    line = refused(settings, tmp_path / "2", own)
    assert "Another node with node.id=2 is running; give this one another node.id." in line
    cluster[2].check_alive()
