"""Runs of a seed: each is the same run again, and what one finds is said with its replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.testing.sim.__main__ import main
from ottla.testing.sim.history import History
from ottla.testing.sim.run import Report, run_seed
from ottla.testing.sim.troubles import Troubles

SHORT_S = 6.0


def figures(report: Report) -> dict[str, object]:
    return {name: value for name, value in report.figures().items() if name != "cpu_s"}


def test_a_run_of_a_seed_is_the_same_run_again() -> None:
    first, second = (run_seed(5, seconds=SHORT_S, kinds=("kill", "pause")) for _ in range(2))
    assert first.failure is None
    assert first.messages_acknowledged > 0
    assert first.digest == second.digest
    assert figures(first) == figures(second)


def test_a_failure_comes_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(history: History, outcome: object) -> Iterator[str]:
        yield "everything is lost"

    monkeypatch.setattr("ottla.testing.sim.checkers.CHECKERS", (lost,))
    options = ["--seed", "3", "--seconds", f"{SHORT_S:g}", "--kinds", "pause"]
    assert main(options) == 1
    said = capsys.readouterr().out
    assert "seed 3: Broken: everything is lost" in said
    assert "python -m ottla.testing.sim --seed 3 --seconds 6 --kinds pause --trace" in said
    assert "1 seeds, 1 failed" in said


def test_the_story_of_a_seed_names_its_troubles_and_its_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seed", "2", "--seconds", f"{SHORT_S:g}", "--kinds", "kill", "--trace"]) == 0
    said = capsys.readouterr().out
    assert "troubles kill of" in said
    assert "is killed" in said
    assert "starts, incarnation 2" in said


def test_a_cluster_that_does_not_come_to_rest_is_a_failure_that_says_what_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def heal(self: Troubles) -> None:
        self._world.network.isolate(1)

    monkeypatch.setattr(Troubles, "heal", heal)
    monkeypatch.setattr("ottla.testing.sim.run.REST_S_MAX", 30.0)
    report = run_seed(1, seconds=2.0, kinds=("reset",))
    assert report.failure is not None
    assert report.failure.startswith("Stuck: after 30 s without faults: ")
    assert "the nodes do not agree on who leads the metadata" in report.failure
