"""What one process leaves to the next that takes up its run."""

from __future__ import annotations

from ottla.pipelines.running.lost_spark import Earlier


def test_earlier_runs_are_told_in_a_variable_of_the_environment() -> None:
    earlier = Earlier("run-1", ("out", "copies"), restarts=3, failures=2)
    assert Earlier.from_json(earlier.to_json()) == earlier


def test_two_runs_are_two() -> None:
    assert Earlier().run_id != Earlier().run_id
