"""The leader's view of its replicas: commits, and who is in sync."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster.replicas import ReplicaSet
from ottla.types import NO_OFFSET, NodeId, Offset

LAG_MS = 1_000
LIFE = 7


def three(isr: tuple[int, ...] = (1, 2, 3)) -> ReplicaSet:
    return ReplicaSet(NodeId(1), (1, 2, 3), isr, partition_epoch=0, now_ms=0)


def fetch(replicas: ReplicaSet, replica: int, offset: int, end: int, now_ms: int) -> bool:
    return replicas.fetched(replica, LIFE, Offset(offset), Offset(end), now_ms)


def proposed(replicas: ReplicaSet, end: int, reached: int, now_ms: int) -> set[int] | None:
    found = replicas.proposal(Offset(end), Offset(reached), Offset(0), now_ms, LAG_MS)
    return None if found is None else set(found)


def test_nothing_is_committed_before_all_in_sync_replicas_have_asked() -> None:
    replicas = three()
    assert fetch(replicas, 2, 10, 10, 1)
    assert replicas.committed(Offset(10), 1) == NO_OFFSET
    assert fetch(replicas, 3, 4, 10, 1)
    assert replicas.committed(Offset(10), 1) == 4


def test_who_may_still_think_that_it_leads_is_waited_for_as_long_as_a_lease() -> None:
    """A preferred election moves the lead, and the leader before is cut off in that moment."""
    replicas, end = three(), Offset(10)
    fetch(replicas, 3, 5, 10, 1)
    assert replicas.lagging(end, 2 * LAG_MS, LAG_MS, 9 * LAG_MS) == {3}
    assert replicas.lagging(end, 9 * LAG_MS + 1, LAG_MS, 9 * LAG_MS) == {2, 3}
    # It knows, and lags as any other from then on.
    fetch(replicas, 2, 5, 10, 1)
    assert replicas.lagging(end, 2 * LAG_MS, LAG_MS, 9 * LAG_MS) == {2, 3}


def test_what_the_leader_has_not_synced_is_not_committed() -> None:
    replicas = three()
    fetch(replicas, 2, 10, 10, 1)
    fetch(replicas, 3, 10, 10, 1)
    assert replicas.committed(Offset(6), 1) == 6


def test_replicas_out_of_sync_hold_nothing_up() -> None:
    replicas = three(isr=(1, 2))
    fetch(replicas, 2, 10, 10, 1)
    assert replicas.committed(Offset(10), 2) == 10


def test_nothing_is_committed_while_too_few_are_in_sync() -> None:
    replicas = three(isr=(1,))
    assert replicas.committed(Offset(10), 2) == NO_OFFSET
    assert replicas.committed(Offset(10), 1) == 10


def test_a_topic_with_fewer_replicas_than_its_minimum_still_commits() -> None:
    alone = ReplicaSet(NodeId(1), (1,), (1,), partition_epoch=0, now_ms=0)
    assert alone.committed(Offset(5), 2) == 5


def test_strangers_and_earlier_lives_do_not_count() -> None:
    replicas = three(isr=(1, 2))
    assert not fetch(replicas, 9, 10, 10, 1)
    assert fetch(replicas, 2, 10, 10, 1)
    assert not replicas.fetched(2, LIFE - 1, Offset(12), Offset(12), 2)
    assert replicas.committed(Offset(12), 1) == 10


def test_a_follower_started_anew_has_to_tell_again_what_it_has() -> None:
    replicas = three(isr=(1, 2))
    fetch(replicas, 2, 10, 10, 1)
    assert replicas.fetched(2, LIFE + 1, Offset(3), Offset(10), 2)
    assert replicas.committed(Offset(10), 1) == 3


def test_a_silent_follower_lags_after_its_time() -> None:
    replicas = three()
    fetch(replicas, 2, 10, 10, 500)
    fetch(replicas, 3, 10, 10, 500)
    assert proposed(replicas, 11, 10, 500 + LAG_MS) is None
    fetch(replicas, 3, 11, 11, 501 + LAG_MS)
    assert proposed(replicas, 11, 10, 501 + LAG_MS) == {1, 3}


def test_a_silent_follower_of_an_idle_partition_stays() -> None:
    replicas = three()
    fetch(replicas, 2, 10, 10, 1)
    fetch(replicas, 3, 10, 10, 1)
    assert proposed(replicas, 10, 10, 100 * LAG_MS) is None


def test_a_follower_of_a_partition_that_was_long_idle_has_its_time() -> None:
    replicas = three(isr=(1, 2))
    fetch(replicas, 2, 10, 10, 1)
    assert proposed(replicas, 10, 10, 100 * LAG_MS) is None
    assert proposed(replicas, 11, 10, 100 * LAG_MS + 1) is None
    assert proposed(replicas, 11, 10, 101 * LAG_MS + 1) == {1}


def test_a_follower_always_a_little_late_keeps_up() -> None:
    """It never reaches the end, but each time what was the end when it last asked."""
    replicas = three(isr=(1, 2))
    for turn in range(20):
        fetch(replicas, 2, turn * 10, (turn + 1) * 10, turn * 600)
    assert replicas.lagging(Offset(200), 19 * 600, LAG_MS) == frozenset()


def test_a_follower_that_falls_further_and_further_back_lags() -> None:
    replicas = three(isr=(1, 2))
    for turn in range(20):
        fetch(replicas, 2, turn, turn * 10, turn * 600)
    assert replicas.lagging(Offset(200), 19 * 600, LAG_MS) == {2}


def test_who_has_come_far_enough_joins_and_counts_at_once() -> None:
    replicas = three(isr=(1, 2))
    fetch(replicas, 2, 10, 10, 1)
    fetch(replicas, 3, 9, 10, 1)
    assert proposed(replicas, 10, 10, 1) is None
    fetch(replicas, 3, 10, 12, 2)
    wanted = replicas.proposal(Offset(12), Offset(10), Offset(0), 2, LAG_MS)
    assert wanted == {1, 2, 3}
    replicas.propose(wanted)
    fetch(replicas, 2, 12, 12, 3)
    assert replicas.committed(Offset(12), 1) == 10
    assert proposed(replicas, 12, 10, 3) is None
    replicas.decided((1, 2, 3), (1, 2, 3), 1, 4)
    assert replicas.committed(Offset(12), 1) == 10
    fetch(replicas, 3, 12, 12, 5)
    assert replicas.committed(Offset(12), 1) == 12


def test_who_is_to_leave_counts_until_the_controller_has_said_so() -> None:
    replicas = three(isr=(1, 2))
    fetch(replicas, 2, 10, 10, 0)
    replicas.propose({1})
    assert replicas.committed(Offset(20), 1) == 10
    replicas.withdraw()
    assert replicas.committed(Offset(20), 1) == 10
    replicas.propose({1})
    replicas.decided((1, 2, 3), (1,), 1, 5)
    assert replicas.committed(Offset(20), 1) == 20


def test_a_proposal_stands_when_its_own_epoch_is_told_once_more() -> None:
    """The controller's answer is often quicker than the metadata that says the same."""
    replicas = three(isr=(1, 2))
    fetch(replicas, 2, 10, 10, 1)
    replicas.decided((1, 2, 3), (1, 2), 1, 2)
    replicas.propose({1, 2, 3})
    replicas.decided((1, 2, 3), (1, 2), 1, 3)
    assert replicas.is_proposing
    assert replicas.committed(Offset(10), 1) == NO_OFFSET, "the third may be in sync by now"
    replicas.decided((1, 2, 3), (1, 2), 2, 4)
    assert not replicas.is_proposing


def test_who_has_lost_what_is_committed_leaves_at_once() -> None:
    replicas = three()
    fetch(replicas, 2, 10, 10, 1)
    fetch(replicas, 3, 10, 10, 1)
    fetch(replicas, 3, 7, 10, 2)
    assert replicas.is_misplaced(3, Offset(10), Offset(0))
    assert not replicas.is_misplaced(2, Offset(10), Offset(0))
    assert proposed(replicas, 10, 10, 2) == {1, 2}


def test_who_has_not_told_yet_has_not_lost_anything() -> None:
    replicas = three()
    assert proposed(replicas, 10, 10, 1) is None


@given(st.lists(st.tuples(st.sampled_from((2, 3)), st.integers(0, 50)), max_size=40))
def test_committed_is_what_every_counted_replica_has_told(fetches: list[tuple[int, int]]) -> None:
    replicas = three()
    told: dict[int, int] = {}
    for turn, (replica, offset) in enumerate(fetches):
        fetch(replicas, replica, offset, 50, turn)
        told[replica] = offset
        committed = replicas.committed(Offset(40), 1)
        assert committed == (min(40, *told.values()) if len(told) == 2 else NO_OFFSET)
