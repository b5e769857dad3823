"""Kafka's own kafka-metadata-quorum.sh, and kafka-dump-log.sh, work on voters that are records."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clientkit.toolchains import JAVA, ROOT, require

from ottla.cli.formatting import format_directory
from ottla.testing import Broker
from ottla.testing.ports import free_ports
from scenarios.polling import until

TIMEOUT_S = 120
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
DUMP = "kafka.tools.DumpLogSegments"
METADATA = "__cluster_metadata-0"


@pytest.fixture(scope="module")
def jars() -> Path:
    """Kafka's, brought by Maven as for the benchmarks."""
    require(JAVA)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        patch.chdir(ROOT)
        found: Path = importlib.import_module("bench.peers").resolve_jars()
    return found


def run(jars: Path, tool: str, *arguments: object) -> tuple[int, str]:
    command = ["java", "-cp", f"{jars}/*", tool, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.returncode, done.stdout + done.stderr


def settings(node_id: int, first: int, own: int) -> dict[str, str]:
    return {
        "node.id": str(node_id),
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{own}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{first}",
    }


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Broker, Broker, int]]:
    """A node that began alone, another that follows it, and the first one's controller port."""
    ports = free_ports(2)
    nodes: list[Broker] = []
    try:
        for node_id in (1, 2):
            home = tmp_path / str(node_id)
            if nodes:
                identity = (tmp_path / "1" / "meta.properties").read_text()
                found = re.search(r"cluster\.id=(\S+)", identity)
                assert found is not None
                format_directory(str(home), found[1], 2, ignore_formatted=False, voters=[])
            own = settings(node_id, ports[0], ports[node_id - 1])
            nodes.append(Broker(own, data_dir=home, ready_timeout_s=TIMEOUT_S))
            nodes[-1].start()
        yield nodes[0], nodes[1], ports[0]
    finally:
        for node in nodes:
            node.kill()
            node.close()


def test_the_tool_adds_and_removes_a_controller(
    jars: Path, two: tuple[Broker, Broker, int], tmp_path: Path
) -> None:
    first, second, port = two

    def tool(*arguments: object) -> tuple[int, str]:
        return run(jars, QUORUM, "--bootstrap-controller", f"127.0.0.1:{port}", *arguments)

    code, said = tool("describe", "--status")
    assert code == 0, said
    assert re.search(r"CurrentVoters:.*\"id\": 1, .*CONTROLLER://127\.0\.0\.1:", said)
    assert re.search(r"CurrentObservers:.*\"id\": 2,", said)

    # Of its own disk the tool reads the directory id.
    config = tmp_path / "second.properties"
    lines = [f"{name}={value}" for name, value in second.settings.items()]
    config.write_text("\n".join([*lines, f"log.dirs={second.data_dir}", ""]))
    added: list[str] = []

    def is_added() -> bool:
        """It may not have caught up yet, by what the leader has heard of it."""
        code, said = tool("--command-config", config, "add-controller")
        added.append(said)
        return code == 0

    until(is_added, "the tool adds no controller", TIMEOUT_S)
    assert "Added controller 2 with directory id" in added[-1]
    code, said = tool("describe", "--replication")
    assert code == 0, said
    rows = [line.split() for line in said.splitlines() if line[:1].isdigit()]
    assert [(row[0], row[6]) for row in rows] == [("1", "Leader"), ("2", "Follower")]
    directory_id = rows[1][1]

    code, said = tool("remove-controller", "--controller-id", 2, "--controller-directory-id", "x")
    assert code != 0
    removal = ("remove-controller", "--controller-id", 2, "--controller-directory-id")
    code, said = tool(*removal, directory_id)
    assert code == 0, said
    assert f"KRaft controller 2 with directory id {directory_id}" in said
    code, said = tool(*removal, directory_id)
    assert code != 0
    assert "VoterNotFound" in said

    first.stop()
    log = first.data_dir / METADATA / "00000000000000000000.log"
    code, said = run(jars, DUMP, "--cluster-metadata-decoder", "--files", log)
    assert code == 0, said
    assert "KRaftVersion" in said
    told = [line for line in said.splitlines() if "KRaftVoters" in line]
    assert [len(re.findall(r'"voterId":', line)) for line in told][-2:] == [2, 1]
