"""A batch that comes twice counts once, and one of an old checkpoint is noticed."""

from __future__ import annotations

import pytest

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.sinks.batches import Batch


def test_only_the_same_batch_of_the_same_query_is_a_repetition() -> None:
    batch = Batch.of_stream("q", 10)
    assert batch.is_new(None, "out")
    assert batch.is_new(Batch.of_stream("q", 9), "out")
    assert not batch.is_new(Batch.of_stream("q", 10), "out")
    assert batch.is_new(Batch.of_stream("another", 10), "out")
    assert batch.is_new(Batch.of_stream("another", 11), "out")


def test_a_batch_before_the_last_means_an_old_checkpoint() -> None:
    with pytest.raises(
        PipelineFailed, match=r"sink out has already taken batch 10 .* batch 9 comes"
    ):
        Batch.of_stream("q", 9).is_new(Batch.of_stream("q", 10), "out")


def test_runs_without_streams_have_no_order() -> None:
    assert Batch.of_run("a").is_new(Batch.of_run("b"), "out")
    assert not Batch.of_run("a").is_new(Batch.of_run("a"), "out")


def test_names_are_sorted_as_the_batches_came() -> None:
    names = [Batch.of_stream("0a1b2c3d-4e5f", number).name for number in (2, 10)]
    assert names == sorted(names) == ["00000002-0a1b2c3d", "00000010-0a1b2c3d"]


def test_a_batch_survives_being_written_down() -> None:
    for batch in (Batch.of_stream("q", 7), Batch.of_run("r")):
        assert Batch.from_json(batch.to_json()) == batch
