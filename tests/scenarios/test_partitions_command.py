"""`ottla partitions`: shows what will happen, does it, and leaves no throttle behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.testing import Cluster
from scenarios.moving import create, moving, replicas_of
from scenarios.polling import until
from scenarios.test_cluster import Load, check

MOVE_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4) as started:
        yield started


class Command:
    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._where = ["--bootstrap", cluster.bootstrap]
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """What it puts out, and what it says."""
        ended = main(["partitions", *arguments, *self._where])
        out, said = self._capsys.readouterr()
        assert ended == code, said
        return out, said

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        out, _ = self("list", *arguments, "--json")
        return [json.loads(line) for line in out.splitlines()]

    def waits_for(
        self, topic: str, facts: list[Any], fact: Callable[[dict[str, Any]], Any]
    ) -> None:
        """Any node is asked, and each hears of a change in its own time."""
        until(
            lambda: [fact(row) for row in self.rows(topic)] == facts,
            f"{topic} does not come to {facts}",
        )


@pytest.fixture
def command(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(cluster, capsys)


def test_topics_move_to_nodes_after_the_plan_was_shown(cluster: Cluster, command: Command) -> None:
    create(cluster, "orders", [[1, 2], [2, 1], [1, 2]])
    load = Load(cluster, "orders", 3)
    load.send(300)
    load.finish()
    told = ("reassign", "--topics", "orders", "--to", "3,4", "--throttle", "20M")
    out, said = command(*told, "--dry-run")
    assert len(out.splitlines()) == 4
    assert "3 partition(s) move" in said
    assert "at least at 20971520 bytes/s" in said
    assert '"replicas": [1, 2]' in said, "the way back"
    assert {tuple(replicas) for replicas, _ in replicas_of(cluster, "orders").values()} == {
        (1, 2),
        (2, 1),
    }, "a dry run moves nothing"
    _, said = command(*told, code=2)
    assert "add --yes" in said
    _, said = command(*told, "--yes")
    assert "is lifted" in said
    assert "No partition is being moved." in said
    assert "throttle" not in command("list")[1]
    command.waits_for("orders", [[3, 4]] * 3, lambda row: sorted(row["replicas"]))
    _, said = command(*told, "--yes")
    assert "All partitions are where they are to be." in said
    check(cluster, "orders", load.reports, 3)


def test_a_move_is_verified_throttled_anew_and_cancelled(
    cluster: Cluster, command: Command, tmp_path: Path
) -> None:
    create(cluster, "parcels", [[1, 2], [2, 1]])
    load = Load(cluster, "parcels", 2)
    load.send(20_000)
    load.finish()
    plan = tmp_path / "plan.json"
    entries = [{"topic": "parcels", "partition": index, "replicas": [4, 3]} for index in (0, 1)]
    plan.write_text(json.dumps({"version": 1, "partitions": entries}))
    # At a byte per second it does not arrive, as if the command had died before its end.
    _, said = command("reassign", str(plan), "--throttle", "1", "--yes", "--no-wait")
    assert "--verify" in said
    _, said = command("reassign", "--verify")
    assert "2 partition(s) are on their way" in said
    rows = command.rows("--moving")
    assert [row["adding"] for row in rows] == [[3, 4], [3, 4]]
    assert [row["removing"] for row in rows] == [[1, 2], [1, 2]]
    _, said = command("reassign", str(plan), "--cancel")
    assert "2 partition(s) are back" in said
    assert "is lifted" in said
    command.waits_for("parcels", [[1, 2], [2, 1]], lambda row: row["replicas"])
    command("reassign", str(plan), "--throttle", "1", "--yes", "--no-wait")
    assert moving(cluster, "parcels") == [0, 1]
    _, said = command("reassign", str(plan), "--throttle", "100M", "--yes")
    assert "is lifted" in said
    there = dict.fromkeys((0, 1), ([4, 3], [3, 4]))
    until(lambda: replicas_of(cluster, "parcels") == there, "others do not hear of it")
    check(cluster, "parcels", load.reports, 2)


def test_a_throttle_that_was_left_behind_is_told_and_removed(
    cluster: Cluster, command: Command
) -> None:
    create(cluster, "left", [[1, 2]])
    setting = "leader.replication.throttled.replicas=0:1"
    where = ["--bootstrap", cluster.bootstrap]
    assert main(["configs", "alter", "--topic", "left", setting, *where]) == 0
    rate = "leader.replication.throttled.rate=5"
    assert main(["configs", "alter", "--broker", "3", rate, *where]) == 0
    until(lambda: "left, node 3 still have a throttle" in command("list")[1], "it is not told")
    _, said = command("reassign", "--verify")
    assert "The throttle of left, node 3 is lifted." in said
    until(lambda: "throttle" not in command("list")[1], "it is still told")


def test_leaders_go_to_their_first_replicas(cluster: Cluster, command: Command) -> None:
    create(cluster, "led", [[1, 2], [2, 1]])
    command("reassign", "--topics", "led", "--to", "1,2", "--yes")
    cluster[1].kill()
    command.waits_for("led", [2, 2], lambda row: row["leader"])
    _, said = command("elect-leaders", "led", code=1)
    assert "led-0: " in said
    cluster[1].start()
    until(lambda: all(len(row["in_sync"]) == 2 for row in command.rows("led")), "1 is not back")
    command("elect-leaders", "led")
    command.waits_for("led", [1, 2], lambda row: row["leader"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--topics", "none", "--to", "1"), "There is no topic none"),
        (("--topics", "wrong", "--to", "1,9"), "there is no node 9"),
        (("--topics", "wrong", "--to", "3"), "wrong-0 has 2 replicas, and 1 node(s) are given"),
        (("--topics", "wrong", "--to", "a"), "are not numbers of nodes"),
        (("--topics", "wrong"), "Say what is to move"),
        (("--topics", "wrong", "--to", "3,4", "--throttle", "x"), "write such as 500K or 20M"),
        (("nowhere.json",), "Cannot read nowhere.json"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    cluster: Cluster, command: Command, arguments: tuple[str, ...], words: str
) -> None:
    if "wrong" not in {row["topic"] for row in command.rows()}:
        create(cluster, "wrong", [[1, 2]])
    code = 2 if any(word in words for word in ("numbers", "Say", "such", "Cannot")) else 1
    _, said = command("reassign", *arguments, "--yes", code=code)
    assert words in said
    assert len(said.strip().splitlines()) == 1
