"""Partitions that go to other brokers: when they have arrived, and how they come back."""

from __future__ import annotations

import random

import pytest

from ottla.cluster.image import NOT_MOVING, MetadataImage, Moving
from ottla.cluster.snapshot import copy_of
from ottla.errors import ErrorCode, PolicyViolation
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.broker_registration import Listener
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from unit.cluster.fleet import Fleet

TOPIC, SET = 2, 0


def fleet_with(*replicas, nodes=6, eligible=False, **settings):
    fleet = Fleet(*range(1, nodes + 1), eligible=eligible)
    fleet.create(
        "t",
        assignments=dict(enumerate(list(each) for each in replicas)),
        partitions=-1,
        factor=-1,
        configs={name.replace("_", "."): value for name, value in settings.items()},
    )
    return fleet


def ask(fleet, wanted, topic="t", may_change_factor=True):
    """The answers by partition; `wanted` has the replicas by partition, None to cancel."""
    partitions = [ReassignablePartition(index, replicas) for index, replicas in wanted]
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=may_change_factor,
        topics=[ReassignableTopic(topic, partitions)],
    )
    response = fleet.ask("alter_partition_reassignments", request)
    assert response.error_code == ErrorCode.NONE
    assert response.allow_replication_factor_change == may_change_factor
    [answered] = response.responses
    assert answered.name == topic
    return [answer.error_code for answer in answered.partitions]


def move(fleet, *replicas, index=0):
    assert ask(fleet, [(index, list(replicas))]) == [ErrorCode.NONE]


def cancel(fleet):
    [code] = ask(fleet, [(0, None)])
    return code


def listed(fleet, **named):
    asked = [ListPartitionReassignmentsTopics(topic, indexes) for topic, indexes in named.items()]
    request = ListPartitionReassignmentsRequest(topics=asked or None)
    response = fleet.ask("list_partition_reassignments", request)
    assert response.error_code == ErrorCode.NONE
    return [
        (topic.name, one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in response.topics
        for one in topic.partitions
    ]


def where(fleet):
    partition = fleet.partition()
    return partition.leader, partition.replicas, partition.isr, partition.moving


def test_a_partition_has_arrived_when_all_who_stay_are_in_sync_and_not_before():
    fleet = fleet_with([1, 2, 3])
    move(fleet, 4, 5, 3)
    moving = Moving(adding=(4, 5), removing=(1, 2))
    assert where(fleet) == (1, (4, 5, 3, 1, 2), (1, 2, 3), moving)
    assert listed(fleet) == [("t", 0, [4, 5, 3, 1, 2], [4, 5], [1, 2])]
    assert fleet.new_isr(1, 2, 3, 4).error_code == ErrorCode.NONE
    assert where(fleet) == (1, (4, 5, 3, 1, 2), (1, 2, 3, 4), moving)
    assert fleet.new_isr(1, 2, 3, 4, 5).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert where(fleet) == (4, (4, 5, 3), (3, 4, 5), NOT_MOVING)
    assert listed(fleet) == []


def test_a_leader_that_stays_leads_on_under_a_new_epoch_when_others_have_gone():
    """A fetch of one that was removed, and is added again, would count else: its log is gone."""
    fleet = fleet_with([1, 2])
    move(fleet, 1, 3)
    epoch = fleet.partition().leader_epoch
    answer = fleet.new_isr(1, 2, 3)
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (0, 1, epoch + 1)
    assert where(fleet) == (1, (1, 3), (1, 3), NOT_MOVING)


def test_newcomers_alone_cost_no_leader_epoch():
    fleet = fleet_with([1])
    move(fleet, 1, 2, 3)
    assert fleet.new_isr(1, 2, 3).leader_epoch == 0
    assert where(fleet) == (1, (1, 2, 3), (1, 2, 3), NOT_MOVING)


def test_another_order_of_the_same_replicas_is_there_at_once():
    fleet = fleet_with([1, 2, 3])
    move(fleet, 3, 2, 1)
    assert where(fleet) == (1, (3, 2, 1), (1, 2, 3), NOT_MOVING)
    assert fleet.elect(0)[0].partition_result[0].error_code == ErrorCode.NONE
    assert fleet.partition().leader == 3


def test_where_it_is_already_nothing_is_written():
    fleet = fleet_with([1, 2])
    move(fleet, 1, 2)
    assert fleet.last_records == []


def test_fewer_replicas_are_there_at_once_if_those_who_stay_are_in_sync():
    fleet = fleet_with([1, 2, 3])
    move(fleet, 2)
    assert where(fleet) == (2, (2,), (2,), NOT_MOVING)
    fleet = fleet_with([1, 2, 3])
    fleet.lose(2)
    move(fleet, 2)
    assert where(fleet) == (1, (2, 1, 3), (1, 3), Moving((), (1, 3)))
    fleet.come_back(2)
    assert fleet.new_isr(1, 2, 3).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert where(fleet) == (2, (2,), (2,), NOT_MOVING)


def test_another_factor_is_refused_to_who_does_not_want_one():
    fleet = fleet_with([1, 2])
    assert ask(fleet, [(0, [1, 2, 3])], may_change_factor=False) == [
        ErrorCode.INVALID_REPLICATION_FACTOR
    ]
    assert where(fleet) == (1, (1, 2), (1, 2), NOT_MOVING)
    assert ask(fleet, [(0, [3, 4])], may_change_factor=False) == [ErrorCode.NONE]
    assert fleet.partition().replicas == (3, 4, 1, 2)
    assert ask(fleet, [(0, [5, 6])], may_change_factor=False) == [ErrorCode.NONE]
    assert ask(fleet, [(0, [3, 4, 1, 2])], may_change_factor=False) == [
        ErrorCode.INVALID_REPLICATION_FACTOR
    ], "it has two once it is where it is to be"


def test_a_cancelled_move_goes_back():
    fleet = fleet_with([3, 2, 1])
    move(fleet, 4, 5, 6)
    fleet.new_isr(1, 2, 3, 4, 5)
    epoch = fleet.partition().leader_epoch
    assert cancel(fleet) == ErrorCode.NONE
    assert where(fleet) == (3, (3, 2, 1), (1, 2, 3), NOT_MOVING)
    assert fleet.partition().leader_epoch == epoch + 1
    assert cancel(fleet) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_newcomer_that_leads_hands_over_when_the_move_is_cancelled():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 4)
    fleet.new_isr(1, 2, 3)
    fleet.lose(1)
    assert fleet.partition().leader == 3
    assert cancel(fleet) == ErrorCode.NONE
    assert where(fleet) == (2, (1, 2), (2,), NOT_MOVING)


def test_there_is_no_way_back_to_who_lacks_acknowledged_messages():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 4)
    fleet.new_isr(1, 2, 3)
    fleet.lose(1, 2)
    before = where(fleet)
    assert before[:3] == (3, (3, 4, 1, 2), (3,))
    assert cancel(fleet) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert where(fleet) == before
    fleet.alter(TOPIC, "t", ("unclean.leader.election.enable", SET, "true"))
    fleet.settle()
    assert cancel(fleet) == ErrorCode.INVALID_REPLICA_ASSIGNMENT, "none of them can serve"
    fleet.come_back(2)
    assert cancel(fleet) == ErrorCode.NONE
    assert where(fleet) == (2, (1, 2), (2,), NOT_MOVING)
    assert fleet.partition().recovery.is_recovering
    assert fleet.controller.unclean_elections == 1


def test_an_eligible_leader_is_a_way_back():
    fleet = fleet_with([1, 2], eligible=True, min_insync_replicas="2")
    move(fleet, 3, 4)
    fleet.new_isr(1, 2, 3)
    fleet.lose(1)
    fleet.lose(2)
    fleet.come_back(2)
    partition = fleet.partition()
    assert (partition.isr, partition.recovery.eligible) == ((3,), (2,))
    assert cancel(fleet) == ErrorCode.NONE
    assert where(fleet) == (2, (1, 2), (2,), NOT_MOVING)
    assert fleet.controller.unclean_elections == 0


def test_who_has_gone_is_not_eligible_any_more():
    fleet = fleet_with([1, 2, 3], eligible=True, min_insync_replicas="3")
    fleet.lose(2)
    assert fleet.partition().recovery.eligible == (2,)
    move(fleet, 1, 3)
    assert where(fleet) == (1, (1, 3), (1, 3), NOT_MOVING)
    assert fleet.partition().recovery.eligible == ()


def test_a_second_move_replaces_the_first_and_cancelling_goes_back_before_both():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 4)
    fleet.new_isr(1, 2, 3)
    move(fleet, 4, 5)
    assert where(fleet) == (1, (4, 5, 3, 1, 2), (1, 2, 3), Moving((3, 4, 5), (1, 2, 3)))
    assert cancel(fleet) == ErrorCode.NONE
    assert where(fleet) == (1, (1, 2), (1, 2), NOT_MOVING)
    move(fleet, 3, 4)
    move(fleet, 4, 5)
    assert fleet.new_isr(1, 2, 4, 5).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert where(fleet) == (4, (4, 5), (4, 5), NOT_MOVING)


def test_a_move_to_where_the_partition_came_from_is_there_at_once():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 4)
    fleet.new_isr(1, 2, 3)
    move(fleet, 1, 2)
    assert where(fleet) == (1, (1, 2), (1, 2), NOT_MOVING)


def test_each_partition_stands_for_itself():
    fleet = fleet_with([1, 2], [2, 3])
    wanted = [
        (0, [3, 4]),
        (7, [3, 4]),
        (1, [3, 99]),
    ]
    assert ask(fleet, wanted) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    assert ask(fleet, [(1, [3, 3]), (0, [])]) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT] * 2
    assert ask(fleet, [(1, [3, -1])]) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert ask(fleet, [(1, [1, 2]), (1, [5, 6])]) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert ask(fleet, [(0, [1])], topic="none") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert ask(fleet, [(0, None)], topic="none") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert listed(fleet) == [
        ("t", 0, [3, 4, 1, 2], [3, 4], [1, 2]),
        ("t", 1, [1, 2, 3], [1], [3]),
    ]
    assert listed(fleet, t=[1, 9], none=[0]) == [("t", 1, [1, 2, 3], [1], [3])]


def test_a_move_puts_no_two_replicas_on_one_host():
    fleet = Fleet()
    for node_id, host in ((1, "a"), (11, "a"), (2, "b"), (3, "c")):
        fleet.join(node_id, rack=host, listeners=[Listener("PLAINTEXT", host, node_id, 0)])
    fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
    assert ask(fleet, [(0, [1, 11])]) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert listed(fleet) == [], "too few hosts"
    # One after the other on the same host is a move like any other.
    assert ask(fleet, [(0, [11, 3])]) == [ErrorCode.NONE]


def test_a_request_that_would_be_too_many_records_moves_nothing(monkeypatch):
    monkeypatch.setattr("ottla.cluster.reassignments.RECORDS_PER_REQUEST_MAX", 1)
    fleet = fleet_with([1, 2], [2, 3])
    with pytest.raises(PolicyViolation, match="may move 1 partitions, not 2"):
        ask(fleet, [(0, [3, 4]), (1, [3, 4])])
    assert listed(fleet) == []


def test_a_broker_that_is_away_is_waited_for():
    fleet = fleet_with([1, 2])
    fleet.lose(3)
    move(fleet, 3, 2)
    assert fleet.partition().replicas == (3, 2, 1)
    fleet.come_back(3)
    fleet.new_isr(1, 2, 3)
    assert where(fleet) == (3, (3, 2), (2, 3), NOT_MOVING)


def test_the_death_of_the_target_delays_a_move_and_that_of_the_source_does_not_stop_it():
    fleet = fleet_with([1, 2, 3])
    move(fleet, 4, 5, 6)
    fleet.new_isr(1, 2, 3, 4, 5)
    fleet.lose(5)
    assert fleet.partition().isr == (1, 2, 3, 4)
    fleet.lose(1)
    assert fleet.partition().leader == 4, "the first replica in sync that lives"
    fleet.come_back(5, clean=False)
    fleet.new_isr(2, 3, 4, 6)
    assert fleet.partition().moving != NOT_MOVING
    fleet.new_isr(2, 3, 4, 5, 6)
    assert where(fleet) == (4, (4, 5, 6), (4, 5, 6), NOT_MOVING)
    fleet.come_back(1)
    assert fleet.partition().replicas == (4, 5, 6)


def test_whoever_is_elected_uncleanly_and_is_all_that_stays_has_arrived():
    fleet = fleet_with([1], unclean_leader_election_enable="true")
    move(fleet, 2)
    fleet.lose(1)
    assert where(fleet) == (2, (2,), (2,), NOT_MOVING)
    assert fleet.partition().recovery.is_recovering


def test_another_controller_goes_on_with_the_move():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 4)
    fleet.lead()
    fleet.settle()
    assert listed(fleet) == [("t", 0, [3, 4, 1, 2], [3, 4], [1, 2])]
    fleet.new_isr(1, 2, 3, 4)
    assert where(fleet) == (3, (3, 4), (3, 4), NOT_MOVING)


def test_a_snapshot_has_the_move():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 4)
    again = MetadataImage()
    for record in copy_of(fleet.image).records():
        again.apply(record)
    assert again == fleet.image
    assert again.topics_by_name["t"].partitions[0].moving == Moving((3, 4), (1, 2))


def test_a_topic_that_is_deleted_meanwhile_is_not_moving():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 4)
    fleet.delete("t")
    assert listed(fleet) == []
    fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
    assert cancel(fleet) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_more_partitions_have_the_factor_that_the_topic_is_to_have():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 4)
    assert fleet.grow("t", 2, assignments=[[5, 6]]).error_code == ErrorCode.NONE
    assert fleet.grow("t", 3).error_code == ErrorCode.NONE
    assert len(fleet.partition(index=2).replicas) == 2


def test_newcomers_lie_where_their_brokers_put_them_and_the_others_where_they_were():
    fleet = fleet_with([1, 2])
    move(fleet, 3, 1)
    directories = [fleet.directory_of(node) for node in (3, 1, 2)]
    assert list(fleet.partition().directories) == directories
    fleet.new_isr(1, 2, 3)
    assert list(fleet.partition().directories) == directories[:2]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("eligible", [False, True])
def test_whatever_happens_nobody_goes_before_all_who_stay_are_in_sync(seed, eligible):
    """Random moves, cancellations, deaths, returns and new controllers, and the rule after each."""
    chance = random.Random(seed)
    fleet = fleet_with([1, 2, 3], eligible=eligible, min_insync_replicas="2")
    nodes = range(1, 7)
    for _ in range(60):
        before = fleet.partition()
        is_cancelled, target = False, None
        what = chance.choice(["move", "cancel", "lose", "return", "join", "join", "join", "lead"])
        if what == "move":
            target = chance.sample(nodes, chance.randint(1, 3))
            move(fleet, *target)
        elif what == "cancel":
            is_cancelled = cancel(fleet) == ErrorCode.NONE
        elif what == "lose":
            alive = [node for node in nodes if not fleet.image.brokers[node].is_fenced]
            if len(alive) > 4:
                fleet.lose(chance.choice(alive))
        elif what == "return":
            away = [node for node in nodes if fleet.image.brokers[node].is_fenced]
            if away:
                fleet.come_back(chance.choice(away), clean=chance.random() < 0.5)
        elif what == "lead":
            fleet.lead()
            fleet.settle()
        elif before.leader >= 0:
            joining = [n for n in before.replicas if not fleet.image.brokers[n].is_fenced]
            fleet.new_isr(*{*before.isr, chance.choice(joining or list(before.isr))})
        after = fleet.partition()
        assert set(after.isr) <= set(after.replicas)
        assert after.leader == -1 or after.leader in after.isr
        gone = set(before.replicas) - set(after.replicas)
        if gone:
            assert after.moving == NOT_MOVING
            assert after.leader_epoch > before.leader_epoch
            if is_cancelled:
                assert gone == set(before.moving.adding)
            else:
                assert set(after.replicas) == set(after.isr)
                assert gone <= {*before.moving.removing, *before.replicas} - set(target or ())
        elif after.moving != NOT_MOVING:
            assert not set(after.replicas) - set(after.moving.removing) <= set(after.isr)
