"""How brokers are unfenced, found silent, and let go."""

from __future__ import annotations

import pytest

from ottla.cluster import sweep
from ottla.cluster.sessions import Predecessor
from ottla.errors import StaleBrokerEpoch
from unit.cluster.fleet import SESSION_MS, Fleet

OWN_MS = SESSION_MS * 2 // 3
A, B = b"\xaa" * 16, b"\xbb" * 16


def test_a_broker_is_unfenced_when_it_has_read_its_registration():
    fleet = Fleet(1)
    fleet.create("t")
    fleet.register(2)
    end = len(fleet.log)
    reply = fleet.beat(2, read_to=end - 2)
    assert (reply.is_fenced, reply.is_caught_up) == (True, False)
    fleet.create("u")
    fleet.create("v")
    reply = fleet.beat(2, read_to=end - 1)
    assert (reply.is_fenced, reply.is_caught_up) == (False, True), "what came later does not count"
    assert fleet.image.brokers[2].is_active


def test_one_that_wants_to_stay_fenced_stays_fenced():
    fleet = Fleet()
    fleet.register(1)
    assert fleet.beat(1, want_fence=True).is_fenced
    assert not fleet.beat(1).is_fenced
    assert fleet.beat(1, want_fence=True).is_fenced
    assert fleet.image.brokers[1].is_fenced


@pytest.mark.parametrize("node_id", [1, 7])
def test_another_epoch_or_an_unknown_broker_is_refused(node_id):
    fleet = Fleet(1)
    with pytest.raises(StaleBrokerEpoch):
        fleet.beat(node_id, broker_epoch=77)


class TestSilence:
    def test_a_silent_broker_is_fenced_after_its_session_and_not_before(self):
        fleet = Fleet(1, 2)
        fleet.create("t", assignments={0: [2, 1]}, partitions=-1, factor=-1)
        fleet.pass_ms(SESSION_MS - 1)
        fleet.beat(1)
        assert fleet.image.brokers[2].is_active
        fleet.pass_ms(1)
        fleet.settle()
        assert fleet.image.brokers[2].is_fenced
        assert fleet.image.brokers[1].is_active
        assert (fleet.partition().leader, fleet.partition().isr) == (1, (1,))
        assert (fleet.partition().leader_epoch, fleet.partition().partition_epoch) == (1, 1)

    def test_heartbeats_keep_a_session_alive(self):
        fleet = Fleet(1, 2)
        for _ in range(10):
            fleet.pass_ms(SESSION_MS - 1)
            fleet.beat(1)
            fleet.beat(2)
        assert fleet.image.brokers[1].is_active
        assert fleet.image.brokers[2].is_active

    def test_a_new_controller_gives_everybody_a_whole_session(self):
        fleet = Fleet(1, 2)
        fleet.pass_ms(SESSION_MS - 1)
        fleet.lead()
        fleet.pass_ms(SESSION_MS - 1)
        fleet.beat(1)
        assert fleet.image.brokers[2].is_active
        fleet.pass_ms(1)
        fleet.settle()
        assert fleet.image.brokers[2].is_fenced

    def test_the_controller_before_has_given_itself_less_than_a_session(self):
        fleet = Fleet(1, 2)
        before = Predecessor(node_id=2, since_ms=fleet.now_ms)
        fleet.pass_ms(SESSION_MS - 1)
        fleet.lead(before)
        fleet.pass_ms(OWN_MS - 1)
        assert fleet.image.brokers[2].is_active
        fleet.pass_ms(1)
        fleet.settle()
        assert fleet.image.brokers[2].is_fenced
        assert fleet.image.brokers[1].is_active, "others have given it a whole one"

    def test_what_others_gave_the_controller_before_it_was_elected_is_waited_for(self):
        fleet = Fleet(1, 2)
        before = Predecessor(node_id=2, since_ms=fleet.now_ms)
        fleet.pass_ms(1_000)
        fleet.lead(before)
        fleet.pass_ms(SESSION_MS - 1_001)
        assert fleet.image.brokers[2].is_active
        fleet.pass_ms(1)
        fleet.settle()
        assert fleet.image.brokers[2].is_fenced

    def test_the_controller_before_has_a_whole_session_once_it_is_heard_of(self):
        fleet = Fleet(1, 2)
        before = Predecessor(node_id=2, since_ms=fleet.now_ms)
        fleet.pass_ms(SESSION_MS - 1)
        fleet.lead(before)
        fleet.beat(2)
        fleet.pass_ms(SESSION_MS - 1)
        assert fleet.image.brokers[2].is_active

    def test_those_who_fall_silent_together_are_fenced_together(self):
        fleet = Fleet(1, 2, 3)
        fleet.create("t", assignments={0: [2, 3, 1]}, partitions=-1, factor=-1)
        fleet.lose(2, 3)
        assert (fleet.partition().leader, fleet.partition().leader_epoch) == (1, 1)

    def test_a_controller_that_has_slept_fences_nobody_for_it(self):
        fleet = Fleet(1, 2)
        fleet.now_ms += 10 * SESSION_MS
        fleet.settle()
        assert fleet.image.brokers[1].is_active
        fleet.beat(1)
        fleet.pass_ms(SESSION_MS)
        fleet.settle()
        assert fleet.image.brokers[2].is_fenced, "it still does not speak"

    def test_thousands_of_partitions_are_moved_in_steps(self, monkeypatch):
        monkeypatch.setattr(sweep, "RECORDS_PER_STEP", 10)
        monkeypatch.setattr(sweep, "PARTITIONS_PER_STEP", 25)
        fleet = Fleet(1, 2)
        fleet.create("t", partitions=100, factor=2)
        fleet.create("u", partitions=60, factor=2)
        fleet.beat(1)
        fleet.now_ms += SESSION_MS - 1
        fleet.beat(1)
        fleet.now_ms += 1
        sizes = []
        while fleet.controller.next_deadline_ms() <= fleet.now_ms:
            fleet.step()
            sizes.append(len(fleet.last_records))
        assert max(sizes) <= 11
        assert len(sizes) >= 16
        assert all(
            (partition.leader, partition.isr) == (1, (1,))
            for topic in fleet.image.topics_by_name.values()
            for partition in topic.partitions.values()
        )

    def test_what_a_failed_controller_left_undone_the_next_one_does(self, monkeypatch):
        monkeypatch.setattr(sweep, "RECORDS_PER_STEP", 10)
        fleet = Fleet(1, 2)
        fleet.create("t", partitions=100, factor=2)
        fleet.now_ms += SESSION_MS - 1
        fleet.beat(1)
        fleet.now_ms += 1
        fleet.step()
        assert fleet.image.brokers[2].is_fenced
        assert any(2 in p.isr for p in fleet.image.topics_by_name["t"].partitions.values())
        fleet.lead()
        fleet.settle()
        assert all(p.isr == (1,) for p in fleet.image.topics_by_name["t"].partitions.values())

    def test_the_broker_in_the_controllers_own_process_needs_no_heartbeat(self, cluster):
        assert cluster.controller.next_deadline_ms() is None
        cluster.restart()
        assert cluster.controller.next_deadline_ms() is None


class TestLeaving:
    def test_leaders_move_first_and_others_must_have_heard_of_it(self):
        fleet = Fleet(1, 2)
        fleet.create("t", assignments={0: [1, 2], 1: [2, 1]}, partitions=-1, factor=-1)
        reply = fleet.beat(1, want_shut_down=True)
        assert (reply.is_fenced, reply.should_shut_down) == (False, False)
        assert fleet.image.brokers[1].is_shutting_down
        assert [fleet.partition(index=index).leader for index in (0, 1)] == [2, 2]
        assert [fleet.partition(index=index).isr for index in (0, 1)] == [(2,), (2,)]
        moved_at = len(fleet.log) - 1
        fleet.beat(2, read_to=moved_at - 1)
        assert not fleet.beat(1, want_shut_down=True).should_shut_down
        fleet.beat(2, read_to=moved_at)
        reply = fleet.beat(1, want_shut_down=True)
        assert (reply.is_fenced, reply.should_shut_down) == (True, True)
        assert fleet.image.brokers[1].is_fenced

    def test_it_is_not_let_go_while_leaders_are_still_being_moved(self, monkeypatch):
        monkeypatch.setattr(sweep, "RECORDS_PER_STEP", 2)
        fleet = Fleet(1, 2)
        fleet.create("t", partitions=9, factor=2)
        for _ in range(3):
            assert not fleet.beat(1, want_shut_down=True).should_shut_down
            fleet.beat(2)
            fleet.step()
        fleet.settle()
        assert not fleet.beat(1, want_shut_down=True).should_shut_down
        fleet.beat(2)
        assert fleet.beat(1, want_shut_down=True).should_shut_down

    def test_who_leads_nothing_may_go_at_once(self):
        fleet = Fleet(1, 2)
        fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
        assert fleet.beat(2, want_shut_down=True).should_shut_down
        assert fleet.partition().isr == (1,)

    def test_who_is_fenced_may_go_at_once_and_who_wants_both_too(self):
        fleet = Fleet(1, 2)
        fleet.create("t", assignments={0: [2, 1]}, partitions=-1, factor=-1)
        assert fleet.beat(2, want_fence=True, want_shut_down=True).should_shut_down
        assert fleet.partition().leader == 1
        before = len(fleet.log)
        assert fleet.beat(2, want_shut_down=True).should_shut_down
        assert len(fleet.log) == before

    def test_what_only_it_can_serve_waits_without_a_leader_until_it_is_back(self):
        fleet = Fleet(1, 2)
        fleet.create("t", assignments={0: [1]}, partitions=-1, factor=-1)
        fleet.beat(1, want_shut_down=True)
        assert (fleet.partition().leader, fleet.partition().isr) == (-1, (1,))
        fleet.beat(2)
        assert fleet.beat(1, want_shut_down=True).should_shut_down
        fleet.come_back(1)
        assert (fleet.partition().leader, fleet.partition().leader_epoch) == (1, 2)

    def test_a_new_controller_goes_on_with_it(self):
        fleet = Fleet(1, 2)
        fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
        fleet.beat(1, want_shut_down=True)
        fleet.lead()
        fleet.settle()
        assert not fleet.beat(1, want_shut_down=True).should_shut_down, "2 has not been heard of"
        fleet.beat(2)
        assert fleet.beat(1, want_shut_down=True).should_shut_down


class TestDirectories:
    def test_a_failed_directory_moves_the_leaders_in_it_and_no_others(self):
        fleet = Fleet()
        fleet.join(1, log_dirs=[A, B])
        fleet.join(2)
        fleet.create("t", assignments={0: [1, 2], 1: [1, 2]}, partitions=-1, factor=-1)
        topic_id = fleet.image.topics_by_name["t"].id
        fleet.ask("assign_directories", 1, [(topic_id, 0, A), (topic_id, 1, B)])
        fleet.beat(1, offline_log_dirs=[B])
        assert fleet.image.brokers[1].log_dirs == (A,)
        assert [fleet.partition(index=index).leader for index in (0, 1)] == [1, 2]
        assert [fleet.partition(index=index).isr for index in (0, 1)] == [(1, 2), (2,)]
        before = len(fleet.log)
        fleet.beat(1, offline_log_dirs=[B])
        assert len(fleet.log) == before, "told once"

    def test_a_broker_that_comes_back_with_the_directory_may_lead_again(self):
        fleet = Fleet()
        fleet.join(1, log_dirs=[A, B])
        fleet.create("t", assignments={0: [1]}, partitions=-1, factor=-1)
        topic_id = fleet.image.topics_by_name["t"].id
        fleet.ask("assign_directories", 1, [(topic_id, 0, B)])
        fleet.beat(1, offline_log_dirs=[B])
        assert fleet.partition().leader == -1
        fleet.lose(1)
        fleet.come_back(1, log_dirs=[A, B])
        assert fleet.partition().leader == 1


@pytest.mark.parametrize("how", ["silent", "found gone", "by its own wish"])
def test_who_was_fenced_has_read_who_leads_instead_before_it_may_serve(how):
    """Its lease would let it go on as the leader that it was."""
    fleet = Fleet(1, 2, 3)
    fleet.create("t", assignments={0: [3, 1, 2]}, partitions=-1, factor=-1)
    fleet.beat(3)
    before = len(fleet.log) - 1
    if how == "silent":
        fleet.lose(3)
    elif how == "found gone":
        fleet.ask("fence_broker", 3, fleet.image.brokers[3].epoch)
    else:
        fleet.beat(3, want_fence=True)
    fleet.settle()
    assert fleet.partition().leader == 1
    assert fleet.beat(3, read_to=before).is_fenced
    assert not fleet.beat(3).is_fenced


def test_who_was_fenced_waits_until_all_that_it_led_is_moved(monkeypatch):
    monkeypatch.setattr(sweep, "PARTITIONS_PER_STEP", 1)
    fleet = Fleet(1, 2, 3)
    fleet.create("t", assignments={n: [3, 1, 2] for n in range(4)}, partitions=-1, factor=-1)
    fleet.settle()
    fleet.ask("fence_broker", 3, fleet.image.brokers[3].epoch)
    moved = [part.leader for part in fleet.image.topics_by_name["t"].partitions.values()]
    assert 3 in moved, "some are still to be moved"
    assert fleet.beat(3).is_fenced
    fleet.settle()
    assert fleet.beat(3, read_to=len(fleet.log) - 2).is_fenced
    assert not fleet.beat(3).is_fenced
