"""Each checker of the simulator accepts a history that is right, and refuses one that is not."""

from __future__ import annotations

import random

import pytest

from ottla.testing.sim import checkers
from ottla.testing.sim.checkers import Broken, FinalLog, Outcome, Stored, check_all
from ottla.testing.sim.history import History, Join, Lead, Read, Sent, TopicState
from ottla.testing.sim.troubles import KINDS, Calm, plan
from ottla.types import NO_OFFSET, TopicPartition

MAIN = TopicPartition("main", 0)


def sent(
    history: History, number: int, *, at: int | None, acks: int = -1, idempotent: bool = True
) -> Sent:
    batch = Sent("producer", MAIN, number, (b"value %d" % number,), acks, idempotent)
    history.send(batch)
    if at is not None:
        history.acknowledge(batch, at)
    return batch


def stored(offset: int, value: bytes, *, epoch: int = 1, checksum: int | None = None) -> Stored:
    crc = hash(value) if checksum is None else checksum
    return Stored(offset, offset + 1, epoch, crc, ((offset, value),))


def log(*values: bytes, node: int = 1, high_watermark: int | None = None) -> FinalLog:
    batches = tuple(stored(offset, value) for offset, value in enumerate(values))
    end = len(values) if high_watermark is None else high_watermark
    return FinalLog(node, MAIN, 0, end, batches)


def found(checker: checkers.Checker, history: History, outcome: Outcome) -> str:
    return "; ".join(checker(history, outcome))


def test_a_history_without_faults_passes() -> None:
    history = History()
    sent(history, 0, at=0)
    sent(history, 1, at=1)
    history.read(Read("reader", MAIN, 0, 2, ((0, 1, b"value 0"), (1, 1, b"value 1"))))
    values = (b"value 0", b"value 1")
    check_all(history, Outcome([log(*values), log(*values, node=2)]))


def test_an_acknowledged_write_that_is_gone_is_found() -> None:
    history = History()
    sent(history, 0, at=0)
    sent(history, 1, at=1)
    outcome = Outcome([log(b"value 0", b"value 1"), log(b"value 0", node=2)])
    said = found(checkers.nothing_lost, history, outcome)
    assert "acknowledged at 1: node 2 has nothing" in said
    with pytest.raises(Broken, match="node 2 has nothing"):
        check_all(history, outcome)


def test_an_acknowledged_write_at_another_place_is_found() -> None:
    history = History()
    sent(history, 0, at=1)
    said = found(checkers.nothing_lost, history, Outcome([log(b"value 0")]))
    assert "acknowledged at 1" in said


def test_what_acks_1_has_lost_is_no_fault() -> None:
    history = History()
    sent(history, 0, at=0, acks=1, idempotent=False)
    check_all(history, Outcome([log()]))


def test_what_lies_after_the_high_watermark_does_not_count_as_there() -> None:
    history = History()
    sent(history, 0, at=0)
    outcome = Outcome([log(b"value 0", high_watermark=0)])
    assert "node 1 has nothing" in found(checkers.nothing_lost, history, outcome)


def test_an_idempotent_write_that_is_there_twice_is_found() -> None:
    history = History()
    sent(history, 0, at=0)
    outcome = Outcome([log(b"value 0", b"value 0")])
    assert "stored at 0 and 1" in found(checkers.none_twice, history, outcome)


def test_a_plain_producer_may_be_there_twice() -> None:
    history = History()
    sent(history, 0, at=1, idempotent=False)
    check_all(history, Outcome([log(b"value 0", b"value 0")]))


def test_what_nobody_has_sent_is_found() -> None:
    outcome = Outcome([log(b"whence")])
    assert "nobody sent what is at 0" in found(checkers.none_twice, History(), outcome)


def test_batches_out_of_order_are_found() -> None:
    history = History()
    sent(history, 0, at=None, idempotent=False)
    sent(history, 1, at=None, idempotent=False)
    outcome = Outcome([log(b"value 1", b"value 0")])
    assert "has stored 1 at 0" in found(checkers.in_order, history, outcome)


def test_an_idempotent_producer_with_a_gap_is_found() -> None:
    history = History()
    sent(history, 0, at=None)
    sent(history, 1, at=None)
    outcome = Outcome([log(b"value 1")])
    assert "has stored 1 without 0" in found(checkers.in_order, history, outcome)


def test_two_values_at_one_offset_are_found() -> None:
    outcome = Outcome([log(b"one"), log(b"other", node=2)])
    said = found(checkers.one_value_per_offset, History(), outcome)
    assert "offset 0 is one batch on node 1" in said


def test_two_batches_under_one_epoch_are_found_though_they_are_gone() -> None:
    history = History()
    history.see_batch("main-0", 7, 3, 111)
    history.see_batch("main-0", 7, 3, 222)
    said = found(checkers.one_value_per_offset, history, Outcome([]))
    assert "two batches were at offset 7 under the one epoch 3" in said


def test_a_hole_in_a_log_is_found() -> None:
    hole = FinalLog(2, MAIN, 0, 3, (stored(0, b"a"), stored(2, b"c")))
    assert "a hole, 2 follows on 1" in found(checkers.no_holes, History(), Outcome([hole]))


def test_an_epoch_that_goes_back_is_found() -> None:
    back = FinalLog(2, MAIN, 0, 2, (stored(0, b"a", epoch=4), stored(1, b"b", epoch=3)))
    assert "epoch 3 follows on 4" in found(checkers.no_holes, History(), Outcome([back]))


def test_a_log_that_ends_before_its_high_watermark_is_found() -> None:
    outcome = Outcome([log(b"a", high_watermark=5)])
    assert "its high watermark is 5" in found(checkers.no_holes, History(), outcome)


def test_what_was_read_and_is_gone_is_found() -> None:
    history = History()
    history.read(Read("reader", MAIN, 0, 1, ((0, 1, b"read"),)))
    outcome = Outcome([log(b"other")])
    assert "reader read read at 0, node 1 has other" in found(checkers.reads_stay, history, outcome)


@pytest.mark.parametrize(("second", "how"), [(0, "goes back"), (2, "skips")])
def test_a_poll_that_does_not_go_on_is_found(second: int, how: str) -> None:
    history = History()
    history.read(Read("reader", MAIN, 0, 9, ((0, 1, b"a"),)))
    history.read(Read("reader", MAIN, 1, 9, ((second, 1, b"b"),)))
    assert how in found(checkers.polls_go_on, history, Outcome([]))


def test_a_read_of_what_is_not_committed_is_found() -> None:
    history = History()
    history.read(Read("reader", MAIN, 0, 0, ((0, 1, b"a"),)))
    assert "the high watermark is 0" in found(checkers.polls_go_on, history, Outcome([]))


def test_a_high_watermark_that_goes_back_in_front_of_a_reader_is_found() -> None:
    history = History()
    for high_watermark in (3, 5, 4):
        history.read(Read("reader", MAIN, 0, high_watermark, ()))
    said = found(checkers.high_watermarks_never_go_back, history, Outcome([]))
    assert "was told the high watermark 5, and then 4" in said


def test_a_leader_that_does_not_know_the_high_watermark_says_nothing_of_it() -> None:
    history = History()
    for high_watermark in (5, NO_OFFSET, 6, NO_OFFSET, 5):
        history.read(Read("reader", MAIN, 0, high_watermark, ()))
    wrong = list(checkers.high_watermarks_never_go_back(history, Outcome([])))
    assert wrong == ["main-0: reader was told the high watermark 6, and then 5"]


def test_an_end_that_goes_back_is_found() -> None:
    history = History()
    for end in (3, 5, 4):
        history.see_end("watcher", MAIN, end)
    said = found(checkers.ends_never_go_back, history, Outcome([]))
    assert "was told the end 5, and then 4" in said


def test_two_leaders_of_one_epoch_are_found() -> None:
    history = History()
    for lead in (Lead("main-0", 4, 1), Lead("main-0", 5, 2), Lead("main-0", 4, 3)):
        history.lead(lead)
    said = found(checkers.one_leader_per_epoch, history, Outcome([]))
    assert "nodes 1 and 3 both led epoch 4" in said


def test_metadata_that_differs_is_found() -> None:
    outcome = Outcome([], metadata={1: ["a", "b"], 2: ["a", "c"]})
    assert "b / c" in found(checkers.metadata_equal, History(), outcome)
    shorter = Outcome([], metadata={1: ["a", "b"], 2: ["a"]})
    assert "2 facts / 1" in found(checkers.metadata_equal, History(), shorter)


def test_a_topic_that_is_not_as_answered_is_found() -> None:
    history = History()
    history.begin_change("orders", TopicState(2))
    history.end_change("orders")
    said = found(checkers.topics_as_answered, history, Outcome([]))
    assert "topic orders" in said
    assert not found(
        checkers.topics_as_answered, history, Outcome([], topics={"orders": TopicState(2)})
    )


def test_a_topic_whose_answer_is_missing_may_be_there_or_not() -> None:
    history = History()
    history.begin_change("orders", TopicState(2))
    for topics in ({}, {"orders": TopicState(2)}):
        assert not found(checkers.topics_as_answered, history, Outcome([], topics=topics))
    other = Outcome([], topics={"orders": TopicState(3)})
    assert "found TopicState(partitions=3" in found(checkers.topics_as_answered, history, other)


def test_an_offset_that_a_group_has_lost_is_found() -> None:
    history = History()
    for _ in range(2):
        value = history.begin_commit("group", MAIN)
        history.end_commit("group", MAIN, value, is_taken=True)
    outcome = Outcome([], offsets={("group", MAIN): 0})
    assert "committed at 1, 0 is found" in found(checkers.offsets_kept, history, outcome)


def test_an_offset_that_went_back_meanwhile_is_found() -> None:
    history = History()
    value = history.begin_commit("group", MAIN)
    history.end_commit("group", MAIN, value, is_taken=True)
    history.fetch_offset("group", MAIN, -1, (0,))
    outcome = Outcome([], offsets={("group", MAIN): 0})
    assert "was told -1" in found(checkers.offsets_kept, history, outcome)


def test_a_commit_without_an_answer_may_be_stored_or_not() -> None:
    history = History()
    history.begin_commit("group", MAIN)
    for offset in (-1, 0):
        outcome = Outcome([], offsets={("group", MAIN): offset})
        assert not found(checkers.offsets_kept, history, outcome)


def test_a_generation_that_goes_back_is_found() -> None:
    history = History()
    history.join(Join("group", "member", 4))
    history.join(Join("group", "member", 3))
    assert "joins 3 after 4" in found(checkers.generations_rise, history, Outcome([]))


def test_what_a_producer_complains_of_is_told() -> None:
    history = History()
    first = sent(history, 0, at=3)
    history.acknowledge(first, 8)
    assert "stored at 3, is acknowledged at 8" in found(
        checkers.no_complaints, history, Outcome([])
    )


def test_every_checker_is_in_the_list() -> None:
    listed = {checker.__name__ for checker in checkers.CHECKERS}
    here = {
        name
        for name, thing in vars(checkers).items()
        if callable(thing)
        and getattr(thing, "__module__", "") == checkers.__name__
        and name.islower()
        and not name.startswith("_")
        and name != "check_all"
    }
    assert listed == here


def test_nodes_are_calm_when_neither_they_nor_their_link_have_had_trouble() -> None:
    now_s = 10.0
    calm = Calm(lambda: now_s)
    assert calm.since_s(1, 2) == 0.0
    calm.disturb([frozenset((1, 2)), frozenset((3,))])
    assert calm.since_s(1, 2) > now_s
    assert calm.since_s(1, 3) > now_s
    calm.settle([frozenset((1, 2)), frozenset((3,))])
    now_s = 25.0
    assert calm.since_s(1, 2) == calm.since_s(1, 3) == 10.0


def test_a_plan_follows_from_its_chance() -> None:
    plans = [plan(random.Random(7), (1, 2, 3), 60.0) for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0] != plan(random.Random(8), (1, 2, 3), 60.0)


def test_plans_have_every_kind_of_trouble() -> None:
    kinds = {t.kind for seed in range(200) for t in plan(random.Random(seed), (1, 2, 3), 60.0)}
    assert kinds == set(KINDS)
