"""From positions to tasks, without a broker and without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.spark.data_loss import Loss, late_beginnings, losses, tell, within
from ottla.spark.options.positions import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Committed,
    Earliest,
    Latest,
    Position,
)
from ottla.spark.options.subscriptions import Assigned, Pattern, Topics
from ottla.spark.planning import (
    CannotRead,
    LogEnds,
    MaximumRows,
    MinimumRows,
    OffsetRange,
    assigned,
    missing,
    ranges,
    resolve,
    split,
    times_wanted,
)
from ottla.types import TopicPartition

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
ENDS = {A: LogEnds(5, 100), B: LogEnds(0, 0)}

NAMES = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 40))
LAGS = st.dictionaries(NAMES, st.integers(0, 10**6), min_size=1, max_size=60)
RANGES = st.dictionaries(
    NAMES, st.tuples(st.integers(0, 10**12), st.integers(0, 5000)), max_size=20
).map(lambda found: [OffsetRange(p, at, at + size) for p, (at, size) in sorted(found.items())])


def start_of(position: Position, **answers: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    return resolve(
        position,
        ENDS,
        by_time=answers.get("by_time", {}),
        committed=answers.get("committed", {}),
        is_start=True,
    ).offsets


def is_repeatable(position: Position, **by_time: int) -> bool:
    found = {A: by_time.get("a", -1), B: by_time.get("b", -1)}
    return resolve(position, ENDS, by_time=found, committed={}, is_start=True).repeatable


# ── which partitions ───────────────────────────────────────────────────────────────────────────


def test_a_pattern_searches_within_names_and_leaves_internal_topics_alone() -> None:
    existing = {"orders": [0, 1], "orders-eu": [0], "other": [0], "__consumer_offsets": [0]}
    found = assigned(Pattern("ord|consumer"), existing)
    assert found == [
        TopicPartition("orders", 0),
        TopicPartition("orders", 1),
        TopicPartition("orders-eu", 0),
    ]


def test_assigned_partitions_are_those_named_that_exist() -> None:
    subscription = Assigned({"t": (0, 7), "gone": (1,)})
    assert assigned(subscription, {"t": [0, 1, 2]}) == [A]
    assert missing(subscription, {"t": [0, 1, 2]}) == ["topic gone", "topic t partition 7"]


def test_topics_that_are_not_there_are_named() -> None:
    assert missing(Topics(("t", "x")), {"t": [0]}) == ["topic x"]
    assert missing(Pattern("x"), {"t": [0]}) == []


# ── positions ──────────────────────────────────────────────────────────────────────────────────


def test_named_positions_become_offsets() -> None:
    assert start_of(Earliest) == {A: 5, B: 0}
    assert start_of(Latest) == {A: 100, B: 0}
    assert start_of(Committed, committed={A: 42}) == {A: 42, B: 0}


def test_minus_one_and_minus_two_stand_for_the_ends() -> None:
    assert start_of(AtOffsets({A: -2, B: -1})) == {A: 5, B: 0}
    assert start_of(AtOffsets({A: -1, B: 7})) == {A: 100, B: 7}


@pytest.mark.parametrize("offsets", [{A: 1}, {A: 1, B: 1, C: 1}])
def test_explicit_offsets_name_every_partition_and_no_other(
    offsets: dict[TopicPartition, int],
) -> None:
    with pytest.raises(CannotRead, match="must name every partition"):
        start_of(AtOffsets(offsets))


def test_a_time_without_a_record_is_an_error_or_the_end() -> None:
    assert times_wanted(AtTimestamp(9), [A, B]) == {A: 9, B: 9}
    assert times_wanted(AtTimestamps({A: 3, B: 4}), [A, B]) == {A: 3, B: 4}
    with pytest.raises(CannotRead, match=r"topic t partition 1 has no record at or after .* 9"):
        start_of(AtTimestamp(9), by_time={A: 50, B: -1})
    assert start_of(AtTimestamp(9, "latest"), by_time={A: 50, B: -1}) == {A: 50, B: 0}
    as_end = resolve(AtTimestamp(9), ENDS, by_time={A: 50, B: -1}, committed={}, is_start=False)
    assert as_end.offsets == {A: 50, B: 0}


def test_only_a_start_that_moves_with_the_log_is_not_repeatable() -> None:
    assert is_repeatable(Earliest)
    assert is_repeatable(Committed)
    assert is_repeatable(AtOffsets({A: -2, B: 3}))
    assert is_repeatable(AtTimestamp(9, "latest"), a=7, b=0)
    assert not is_repeatable(Latest)
    assert not is_repeatable(AtOffsets({A: -1, B: 3}))
    assert not is_repeatable(AtTimestamp(9, "latest"), a=7)


# ── what is gone ───────────────────────────────────────────────────────────────────────────────


def test_a_loss_names_topic_partition_wanted_and_available() -> None:
    lost = losses({A: 4, B: 0, C: 3}, ENDS)
    assert lost == [Loss(A, 4, LogEnds(5, 100)), Loss(C, 3, None)]
    assert "topic t partition 0: offset 4 was wanted, available are 5 to 100" in tell(lost)
    assert "topic u partition 0: offset 3 was wanted and the partition is gone" in tell(lost)
    assert "\n" not in tell(lost)


def test_a_position_after_the_end_is_lost_and_one_at_either_end_is_not() -> None:
    assert losses({A: 5}, ENDS) == losses({A: 100}, ENDS) == []
    assert "shorter than it was" in tell(losses({A: 101}, ENDS))


def test_many_losses_are_counted_and_a_few_named() -> None:
    told = tell(losses({TopicPartition("t", n): 1 for n in range(100)}, {}))
    assert told.count("was wanted") == 5
    assert told.endswith("and 95 more")


def test_a_new_partition_that_does_not_begin_at_zero_has_lost_records() -> None:
    assert late_beginnings(ENDS) == [Loss(A, 0, LogEnds(5, 100))]


def test_a_range_is_cut_to_what_is_there_and_the_rest_is_told() -> None:
    whole = within({A: 0, B: 0, C: 0}, {A: 50, B: 1, C: 9}, ENDS)
    assert whole == (
        [OffsetRange(A, 5, 50)],
        [Loss(A, 0, ENDS[A]), Loss(B, 1, ENDS[B]), Loss(C, 0, None)],
    )
    assert within({A: 0}, {A: 3}, ENDS) == ([], [Loss(A, 0, ENDS[A])])
    assert within({A: 5}, {A: 100}, ENDS) == ([OffsetRange(A, 5, 100)], [])


# ── the end of a batch ─────────────────────────────────────────────────────────────────────────


@settings(deadline=None, max_examples=300)
@given(LAGS, st.integers(1, 10**6))
def test_a_batch_never_takes_more_than_its_maximum(
    lags: dict[TopicPartition, int], maximum: int
) -> None:
    start = dict.fromkeys(lags, 1000)
    latest = {p: 1000 + lag for p, lag in lags.items()}
    end = MaximumRows(maximum).limited(start, latest)
    taken = {p: end[p] - start[p] for p in lags}
    assert sum(taken.values()) == min(maximum, sum(lags.values()))
    assert all(0 <= taken[p] <= lags[p] for p in lags)


def test_a_share_is_never_larger_than_the_lag() -> None:
    lags = {A: 9915, B: 2, C: 1}
    end = MaximumRows(9911).limited(dict.fromkeys(lags, 0), lags)
    assert end == {A: 9908, B: 2, C: 1}


def test_shares_follow_the_lag() -> None:
    end = MaximumRows(100).limited({A: 0, B: 0, C: 50}, {A: 9000, B: 1000, C: 50})
    assert end == {A: 90, B: 10, C: 50}


@settings(deadline=None)
@given(LAGS, st.integers(1, 100))
def test_every_partition_gets_on_even_while_others_are_written(
    lags: dict[TopicPartition, int], maximum: int
) -> None:
    limit = MaximumRows(maximum)
    start, lagging = dict.fromkeys(lags, 0), {p for p, lag in lags.items() if lag}
    for _ in range(len(lagging) // maximum + 1):
        # Whatever was read is written again at once.
        start = limit.limited(start, {p: start[p] + lag for p, lag in lags.items()})
        lagging -= {p for p in lagging if start[p] > 0}
    assert not lagging


def test_a_position_after_the_end_of_the_log_goes_back_to_it() -> None:
    assert MaximumRows(1).limited({A: 9, B: 0}, {A: 4, B: 50}) == {A: 4, B: 1}


def test_a_batch_waits_for_its_minimum_and_not_longer_than_its_delay() -> None:
    now_ms = 0
    minimum = MinimumRows(10, 1000, lambda: now_ms)
    assert not minimum.waits(1), "the first batch does not wait"
    assert minimum.waits(9)
    assert not minimum.waits(10)
    now_ms = 999
    assert minimum.waits(9)
    now_ms = 1000
    assert minimum.waits(0), "a batch without rows is none"
    assert not minimum.waits(1)
    assert minimum.waits(1), "the delay begins anew"


# ── tasks ──────────────────────────────────────────────────────────────────────────────────────


def sizes(pieces: list[OffsetRange]) -> list[int]:
    return [piece.size for piece in pieces]


def test_empty_ranges_make_no_task() -> None:
    assert ranges({A: 3, B: 9, C: 5}, {A: 3, B: 7, C: 6}) == [OffsetRange(C, 5, 6)]


@settings(deadline=None)
@given(RANGES, st.none() | st.integers(1, 50), st.none() | st.integers(1, 3000))
def test_tasks_cover_the_ranges_without_gap_or_overlap(
    whole: list[OffsetRange], tasks_min: int | None, offsets_max: int | None
) -> None:
    pieces = split(whole, tasks_min=tasks_min, offsets_max=offsets_max)
    assert all(piece.size > 0 for piece in pieces)
    if offsets_max is not None:
        assert all(piece.size <= offsets_max for piece in pieces)
    joined: list[OffsetRange] = []
    for piece in pieces:
        if joined and joined[-1].partition == piece.partition:
            assert joined[-1].end == piece.start
            joined[-1] = joined[-1]._replace(end=piece.end)
        else:
            joined.append(piece)
    assert joined == [piece for piece in whole if piece.size > 0]


def test_a_partition_is_one_task_unless_asked_otherwise() -> None:
    """Two tasks of one partition would write a key's later row before its earlier one."""
    whole = [OffsetRange(A, 7, 3_000_000_007), OffsetRange(B, 0, 10)]
    assert split(whole, tasks_min=None, offsets_max=None) == whole


def test_more_tasks_than_partitions_are_cut_from_the_large_ones() -> None:
    # As Spark's own calculator: the small one counts as a task, the rest is for the large one.
    whole = [OffsetRange(A, 0, 10_000), OffsetRange(B, 0, 100)]
    assert sizes(split(whole, tasks_min=3, offsets_max=None)) == [5000, 5000, 100]
    assert sizes(split(whole, tasks_min=2, offsets_max=None)) == [10_000, 100]
    assert sizes(split([OffsetRange(A, 0, 5)], tasks_min=3, offsets_max=None)) == [1, 2, 2]


def test_a_half_counts_as_a_whole_task() -> None:
    # 25 % of ten tasks are 2.5, and Java rounds that to three.
    whole = [OffsetRange(A, 0, 250), OffsetRange(B, 0, 250), OffsetRange(C, 0, 500)]
    assert len(split(whole, tasks_min=10, offsets_max=None)) == 3 + 3 + 5


def test_both_limits_hold_together() -> None:
    whole = [OffsetRange(A, 0, 40), OffsetRange(B, 0, 20)]
    assert sizes(split(whole, tasks_min=None, offsets_max=20)) == [20, 20, 20]
    assert len(split(whole, tasks_min=6, offsets_max=20)) == 6


def test_two_hundred_partitions_are_two_hundred_tasks() -> None:
    whole = [OffsetRange(TopicPartition("t", n), 0, 5) for n in range(200)]
    assert split(whole, tasks_min=None, offsets_max=None) == whole
