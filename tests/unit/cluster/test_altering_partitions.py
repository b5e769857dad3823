"""AlterPartition: whose word counts about who is in sync."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode, StaleBrokerEpoch
from ottla.wire.messages.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from unit.cluster.fleet import Fleet


@pytest.fixture
def fleet():
    fleet = Fleet(1, 2, 3)
    fleet.create("t", assignments={0: [1, 2, 3]}, partitions=-1, factor=-1)
    return fleet


def test_a_leader_drops_a_replica_and_takes_it_back(fleet):
    answer = fleet.new_isr(1, 2)
    assert (answer.error_code, answer.isr) == (ErrorCode.NONE, [1, 2])
    assert (answer.leader_id, answer.leader_epoch, answer.partition_epoch) == (1, 0, 1)
    assert fleet.partition().isr == (1, 2)
    answer = fleet.new_isr(1, 2, 3)
    assert (answer.leader_epoch, answer.partition_epoch) == (0, 2)
    assert fleet.partition().isr == (1, 2, 3)


def test_what_is_so_already_is_told_and_not_written(fleet):
    before = len(fleet.log)
    assert fleet.new_isr(1, 2, 3).partition_epoch == 0
    assert len(fleet.log) == before


@pytest.mark.parametrize(
    ("members", "fields", "code"),
    [
        ((1, 2), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 2), {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1, 2), {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"by": 3}, ErrorCode.INVALID_REQUEST),
        ((1, 3), {}, ErrorCode.INVALID_REQUEST),
        ((3,), {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ((3,), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((3, 3), {}, ErrorCode.INVALID_REQUEST),
        ((2, 2), {}, ErrorCode.INVALID_REQUEST),
        ((2, 9), {}, ErrorCode.INVALID_REQUEST),
        ((2,), {"recovery": 1}, ErrorCode.INVALID_REQUEST),
        ((2,), {"recovery": 7}, ErrorCode.INVALID_REQUEST),
        ((2, 1), {}, ErrorCode.INELIGIBLE_REPLICA),
        ((2, 3), {"epochs": {3: 1}}, ErrorCode.INELIGIBLE_REPLICA),
        ((2, 3), {"topic_id": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_whoever_does_not_know_how_things_stand_changes_nothing(fleet, members, fields, code):
    fleet.lose(1)  # From now on 2 leads in epoch 1.
    before = fleet.partition(), len(fleet.log)
    assert before[0].leader_epoch == before[0].partition_epoch == 1
    assert fleet.new_isr(*members, **fields).error_code == code
    assert (fleet.partition(), len(fleet.log)) == before


def test_a_partition_that_is_not_there(fleet):
    topic_id = fleet.image.topics_by_name["t"].id
    request = AlterPartitionRequest(
        1, fleet.image.brokers[1].epoch, [TopicData(topic_id, [PartitionData(5)])]
    )
    [answer] = fleet.ask("alter_partition", request).topics[0].partitions
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_request_of_another_life_is_refused_as_a_whole(fleet):
    with pytest.raises(StaleBrokerEpoch):
        fleet.new_isr(1, 2, broker_epoch=77)


def test_a_broker_that_leaves_is_not_taken_back(fleet):
    fleet.create("u", assignments={0: [3]}, partitions=-1, factor=-1)
    fleet.beat(3, want_shut_down=True)
    assert fleet.partition().isr == (1, 2)
    assert fleet.new_isr(1, 2, 3).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_fenced_leader_cannot_keep_its_place(fleet):
    """Between the record that fences it and the election it is the leader in name only."""
    epoch = fleet.image.brokers[1].epoch
    fleet.beat(1, want_fence=True)
    assert fleet.partition().leader == 2
    answer = fleet.new_isr(1, by=1, broker_epoch=epoch, leader_epoch=0, partition_epoch=0)
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_follower_that_was_restarted_since_the_leader_looked_is_not_in_sync(fleet):
    epoch = fleet.image.brokers[3].epoch
    fleet.lose(3)
    fleet.come_back(3)
    answer = fleet.new_isr(1, 2, 3, epochs={3: epoch})
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA
    assert fleet.new_isr(1, 2, 3).error_code == ErrorCode.NONE


def test_version_2_names_brokers_without_epochs(fleet):
    topic_id = fleet.image.topics_by_name["t"].id
    data = PartitionData(partition_index=0, new_isr=[1, 2])
    request = AlterPartitionRequest(1, fleet.image.brokers[1].epoch, [TopicData(topic_id, [data])])
    [answer] = fleet.ask("alter_partition", request).topics[0].partitions
    assert (answer.error_code, answer.isr) == (ErrorCode.NONE, [1, 2])


def test_a_partition_counts_once_in_a_request(fleet):
    topic_id = fleet.image.topics_by_name["t"].id
    data = [PartitionData(new_isr=[1, 2]), PartitionData(new_isr=[1, 3])]
    request = AlterPartitionRequest(1, fleet.image.brokers[1].epoch, [TopicData(topic_id, data)])
    answers = fleet.ask("alter_partition", request).topics[0].partitions
    assert [answer.error_code for answer in answers] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert fleet.partition().isr == (1, 2)


def test_a_leader_whose_directory_failed_meanwhile_is_told_of_its_successor(fleet):
    broker = fleet.image.brokers[1]
    fleet.image.brokers[1] = broker._replace(log_dirs=(b"z" * 16,))
    assert fleet.new_isr(1, 2).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert fleet.partition().leader == 2


def test_a_leader_that_leaves_itself_out_has_another_lead(fleet):
    answer = fleet.new_isr(2, 3)
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    after = fleet.partition()
    assert (after.leader, after.leader_epoch, after.isr) == (2, 1, (2, 3))
    assert fleet.new_isr(1, 2, 3).error_code == ErrorCode.NONE, "it has caught up"


def test_a_leader_that_leaves_itself_out_leads_on_where_nobody_else_can(fleet):
    fleet.lose(2, 3)
    before = fleet.partition()
    answer = fleet.new_isr()
    assert (answer.error_code, answer.leader_id) == (ErrorCode.NONE, 1)
    after = fleet.partition()
    assert (after.leader, after.isr) == (1, before.isr)
    assert after.leader_epoch == answer.leader_epoch == before.leader_epoch + 1


def test_who_is_named_instead_of_the_leader_must_be_able_to_serve(fleet):
    fleet.beat(2, want_fence=True)
    fleet.image.brokers[2] = fleet.image.brokers[2]._replace(is_fenced=False)
    fleet.image.brokers[3] = fleet.image.brokers[3]._replace(is_fenced=True)
    before = fleet.partition()
    assert before.isr == (1, 3)
    assert fleet.new_isr(3).error_code == ErrorCode.NONE
    after = fleet.partition()
    assert (after.leader, after.leader_epoch) == (1, before.leader_epoch + 1)


def test_a_leader_that_gave_up_with_too_few_in_sync_stays_eligible():
    fleet = Fleet(1, 2, 3, eligible=True, min_insync_replicas=2)
    fleet.create("t", assignments={0: [1, 2, 3]}, partitions=-1, factor=-1)
    fleet.new_isr(1, 2)
    fleet.new_isr(2)
    after = fleet.partition()
    assert (after.leader, after.isr) == (2, (2,))
    assert 1 in after.recovery.eligible, "it has all that was committed"
