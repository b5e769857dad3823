"""What `ottla cluster` says before any process is started, and how its stream looks."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.cli.supervisor.home import Home, Plan
from ottla.cli.supervisor.stream import LINES_MAX, Stream
from ottla.cli.supervisor.up import node_command, node_environment

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert main(["cluster", *arguments]) == code
    return capsys.readouterr().err


@pytest.mark.parametrize("command", [("status",), ("kill", "1"), ("start", "1"), ("down",)])
def test_a_directory_without_a_cluster_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    path = str(tmp_path / "none")
    words = said(capsys, *command, "--data-dir", path, code=1)
    assert words == (
        f"ottla: {path} has no cluster; `ottla cluster up --data-dir {path}` makes one.\n"
    )
    assert not (tmp_path / "none").exists()


def test_a_cluster_keeps_its_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(str(tmp_path))
    home.write_plan(Plan(CLUSTER, 3, 19_092))
    assert home.plan(None, None) == Plan(CLUSTER, 3, 19_092)
    assert home.plan(3, 29_092) == Plan(CLUSTER, 3, 29_092)
    words = said(capsys, "up", "--nodes", "5", "--data-dir", str(tmp_path), code=1)
    assert "has a cluster of 3 nodes; leave out --nodes" in words


def test_what_is_no_cluster_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "meta.properties").touch()
    assert "is the data of one broker" in said(capsys, "up", "--data-dir", str(tmp_path), code=1)
    (tmp_path / "meta.properties").rename(tmp_path / "cluster.json")
    assert "is not what" in said(capsys, "up", "--data-dir", str(tmp_path), code=1)
    beneath = str(tmp_path / "cluster.json" / "below")
    assert "cannot hold a cluster" in said(
        capsys, "up", "--data-dir", beneath, "--base-port", "19092", code=1
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listeners=127.0.0.1:1", "gives each node its own"),
        ("process.roles=broker", "--set process.roles: `ottla cluster up` gives each node its own"),
        ("controller.listener.names=C", "gives each node its own"),
        ("controller.quorum.bootstrap.servers=127.0.0.1:1", "gives each node its own"),
        ("metadata.log.dir=/tmp/m", "gives each node its own"),
        ("broker.id=7", "gives each node its own"),
        ("num.partitions=many", "num.partitions"),
        ("num.partitoins=3", "num.partitions"),
    ],
)
def test_wrong_settings_are_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = str(tmp_path / "none")
    assert words in said(capsys, "up", "--data-dir", path, "--set", text, code=2)
    assert not (tmp_path / "none").exists()


def test_status_without_a_supervisor_shows_stopped_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Home(str(tmp_path)).write_plan(Plan(CLUSTER, 2, 19_092))
    assert main(["cluster", "status", "--data-dir", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["node_id"], row["address"], row["state"]) for row in rows] == [
        (1, "127.0.0.1:19092", "stopped"),
        (2, "127.0.0.1:19093", "stopped"),
    ]


def test_ports_end_somewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, "up", "--base-port", "65534", "--data-dir", str(tmp_path), code=2)
    assert "leaves no ports for all nodes" in words


@pytest.mark.parametrize(("nodes", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 1), (5, 3, 2)])
def test_topics_of_a_cluster_outlive_a_node_and_a_person_may_say_otherwise(
    nodes: int, replicas: int, in_sync: int
) -> None:
    plan = Plan(CLUSTER, nodes, 9092)
    command = node_command(Home("here"), plan, nodes, ["min.insync.replicas=1"])
    sets = [command[at + 1] for at, word in enumerate(command) if word == "--set"]
    assert sets[:2] == [f"default.replication.factor={replicas}", f"min.insync.replicas={in_sync}"]
    assert sets[-1] == "min.insync.replicas=1"
    assert plan.voters.startswith("1@127.0.0.1:9092")


def test_nodes_do_not_inherit_one_address_for_all() -> None:
    shared = {"OTTLA_NUM_PARTITIONS": "3", "HOME": "/home/k"}
    assert node_environment({**shared, "OTTLA_LISTENERS": "x", "OTTLA_LOG_DIRS": "y"}) == shared


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LINE = "2026-01-31 12:00:00.123 info    broker.main: words"


def test_lines_have_their_node_before_them() -> None:
    plain = io.StringIO()
    stream = Stream(plain)
    stream.tell_of(2, LINE)
    stream.tell("ready")
    stream.close()
    assert plain.getvalue() == f"node 2  | {LINE}\ncluster | ready\n"


def test_on_a_terminal_they_have_colours_and_no_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    stream = Stream(terminal)
    stream.tell_of(1, LINE)
    stream.close()
    assert terminal.getvalue() == f"\x1b[36mnode 1  |\x1b[0m {LINE[11:]}\n"


def test_nobody_waits_for_a_terminal_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    stream = Stream(io.StringIO())
    for number in range(LINES_MAX + 5):
        stream.tell_of(1, str(number))
    assert stream._left_out == 5
