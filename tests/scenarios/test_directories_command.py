"""`ottla partitions dirs` and `move-dir`: what lies where, what will move, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.testing import Broker
from raw_client import RawClient
from scenarios.test_moving_between_directories import everything, fill, here_and_there


class Command:
    def __init__(self, broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
        self._where = ["--bootstrap", broker.bootstrap]
        self._capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """What it puts out, and what it says."""
        ended = main(["partitions", *map(str, arguments), *self._where])
        out, said = self._capsys.readouterr()
        assert ended == code, said
        return out, said

    def rows(self, *arguments: object) -> list[dict[str, Any]]:
        out, _ = self("dirs", "--node", 1, *arguments, "--json")
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("disks")
    return home / "a", home / "b"


@pytest.fixture(scope="module")
def broker(disks: tuple[Path, Path]) -> Iterator[Broker]:
    with Broker({"log.dirs": ",".join(map(str, disks))}, data_dir=disks[0]) as started:
        started.create_topic("t")
        yield started


@pytest.fixture
def command(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(broker, capsys)


def test_replicas_move_after_the_plan_was_shown_and_the_throttle_is_lifted(
    broker: Broker, command: Command, disks: tuple[Path, Path]
) -> None:
    broker.create_topic("orders")
    with RawClient(broker.bootstrap) as client:
        here, there = here_and_there(client, "orders", *disks)
        values = fill(client, "orders", 8, 100_000)
        told = ("move-dir", "--node", 1, "--topics", "orders", "--to", there, "--throttle", "50M")
        out, said = command(*told, "--dry-run")
        assert len(out.splitlines()) == 2
        assert "1 replica(s) move" in said
        assert "at least at 52428800 bytes/s" in said
        assert [row["directory"] for row in command.rows("--topics", "orders")] == [str(here)]
        _, said = command(*told, code=2)
        assert "add --yes" in said
        _, said = command(*told, "--yes")
        assert "The throttle of node 1 is lifted." in said
        assert [row["directory"] for row in command.rows("--topics", "orders")] == [str(there)]
        _, said = command("dirs", "--node", 1)
        assert "throttle" not in said
        _, said = command(*told, "--yes")
        assert "All of them lie there already." in said
        assert everything(client, "orders") == values


def test_a_move_is_followed_hastened_and_cancelled(
    broker: Broker, command: Command, disks: tuple[Path, Path]
) -> None:
    broker.create_topic("parcels")
    with RawClient(broker.bootstrap) as client:
        here, there = here_and_there(client, "parcels", *disks)
        fill(client, "parcels", 8, 100_000)
    slowly = ("--throttle", "1", "--yes", "--no-wait")
    told = ("move-dir", "--node", 1, "--topics", "parcels")
    _, said = command(*told, "--to", there, *slowly)
    assert "--verify` shows how far they are" in said
    (row,) = command.rows("--moving")
    assert (row["directory"], row["moves_to"], row["lag"]) == (str(here), str(there), 8)
    _, said = command("move-dir", "--node", 1, "--verify")
    assert "parcels-0 moves to" in said
    assert "8 messages are missing" in said
    _, said = command(*told, "--cancel")
    assert "1 replica(s) stay where they are." in said
    assert "is lifted" in said
    assert command.rows("--moving") == []
    command(*told, "--to", there, *slowly)
    command(*told, "--to", there, "--throttle", "1G", "--yes")
    (row,) = command.rows("--topics", "parcels")
    assert row["directory"] == str(there), "another rate has brought it there"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--node", 9, "--topics", "t", "--to", "B"), 1, "There is no node 9; the cluster has 1."),
        (("--node", 1, "--topics", "none", "--to", "B"), 1, "There is no topic none"),
        (("--node", 1, "--topics", "t", "--to", "/x"), 1, "Node 1 has no directory /x; it has "),
        (("--node", 1, "--from", "/x", "--to", "B"), 1, "Node 1 has no directory /x; it has "),
        (("--node", 1, "--to", "B"), 2, "Say what is to move, by --topics or --from"),
        (("--node", 1, "--topics", "t"), 2, "and where, by --to DIR"),
        (("--node", 1, "--topics", "t", "--to", "B", "--throttle", "x"), 2, "no bytes per second"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    command: Command,
    disks: tuple[Path, Path],
    arguments: tuple[object, ...],
    code: int,
    words: str,
) -> None:
    given = [disks[1] if each == "B" else each for each in arguments]
    _, said = command("move-dir", *given, code=code)
    assert words in said
    assert len(said.splitlines()) == 1
