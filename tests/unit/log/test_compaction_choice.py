"""When a log is compacted, and up to where."""

from __future__ import annotations

from typing import Any

from ottla.log.compaction.choice import Dirtiness, Rules, dirtiness
from ottla.log.retention import Extent

NOW_MS = 1_000_000
LONG = 2**63 - 1
# Four segments of ten messages and a hundred bytes; the last one is being written to.
LOG = [Extent(base, base + 10, 100) for base in (0, 10, 20, 30)]
RULES = Rules(dirty_ratio_min=0.5, lag_ms_min=0, lag_ms_max=LONG)


def judge(cleaned_to: int | None = None, rules: Rules = RULES, **options: Any) -> Dirtiness:
    times = options.pop("times", {})
    return dirtiness(
        LOG,
        cleaned_to,
        options.pop("start_offset", 0),
        options.pop("final_base", 30),
        rules,
        NOW_MS,
        lambda at: times.get(at, 1),
        lambda at: times.get(at, 1),
    )


def test_a_log_that_was_never_compacted_is_all_dirty_but_for_its_last_segment() -> None:
    state = judge()
    assert (state.first_dirty, state.end) == (0, 30)
    assert (state.clean_bytes, state.dirty_bytes, state.ratio) == (0, 300, 1.0)
    assert state.wants_compaction(RULES)


def test_the_dirty_ratio_has_to_be_above_the_setting() -> None:
    assert judge(10).ratio == 200 / 300
    assert judge(10).wants_compaction(RULES)
    assert judge(20).ratio == 100 / 300
    assert not judge(20).wants_compaction(RULES)
    assert judge(20).wants_compaction(RULES._replace(dirty_ratio_min=0.3))


def test_a_clean_log_is_left_alone() -> None:
    assert judge(30).dirty_bytes == 0
    assert not judge(30).wants_compaction(RULES._replace(dirty_ratio_min=0.0))


def test_what_is_not_synced_and_committed_is_not_touched() -> None:
    state = judge(final_base=20)
    assert (state.end, state.dirty_bytes) == (20, 200)
    assert judge(final_base=0).dirty_bytes == 0


def test_a_checkpoint_outside_of_the_log_is_not_believed() -> None:
    assert judge(41).first_dirty == 0
    assert judge(5, start_offset=12).first_dirty == 12
    assert judge(40).first_dirty == 40


def test_young_messages_wait_and_so_does_all_behind_them() -> None:
    rules = RULES._replace(lag_ms_min=100)
    state = judge(rules=rules, times={1: NOW_MS - 99})
    assert (state.end, state.dirty_bytes) == (10, 100)
    assert judge(rules=rules, times={1: NOW_MS - 100}).end == 30
    assert judge(rules=rules, times={0: NOW_MS}).dirty_bytes == 0


def test_old_messages_are_compacted_whatever_the_ratio() -> None:
    rules = RULES._replace(dirty_ratio_min=0.9, lag_ms_max=1000)
    times = dict.fromkeys(range(4), NOW_MS)
    assert not judge(20, rules, times=times).wants_compaction(rules)
    times[2] = NOW_MS - 1001
    assert judge(20, rules, times=times).wants_compaction(rules)
    times[2], times[1] = NOW_MS, 1
    assert not judge(20, rules, times=times).wants_compaction(rules), "that one is clean"
