"""What children of the tests end with is their own, and they end when their owner does."""

from __future__ import annotations

from pathlib import Path

from spark.kit.pipeline_runs import PATIENCE_S, CommandLine


def test_a_child_that_fails_says_so_itself(tmp_path: Path) -> None:
    with CommandLine(["pipeline", "run", "nosuch.yaml"], tmp_path) as child:
        code = child.end(PATIENCE_S)
    assert (code, "could not acquire lock" in child.log()) == (2, False), child.log()


def test_a_child_ends_with_its_owner(tmp_path: Path) -> None:
    arguments = ["start", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with CommandLine(arguments, tmp_path) as child:
        child.leave()
        assert child.end(PATIENCE_S) == 1
