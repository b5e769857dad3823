"""Who leads when brokers come and go, and when somebody asks for another leader."""

from __future__ import annotations

import pytest

from ottla.cluster import requested_elections
from ottla.cluster.elections import Rules, Standing
from ottla.cluster.growth import grown
from ottla.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidUpdateVersion,
    PolicyViolation,
    UnsupportedVersion,
)
from ottla.wire.messages.broker_registration import Listener
from ottla.wire.messages.controller_registration import ControllerRegistrationRequest, Feature
from unit.cluster.fleet import Fleet

TRANSACTIONS = Feature("transaction.version", 0, 2)

TOPIC, BROKER, SET = 2, 4, 0
PREFERRED, UNCLEAN = 0, 1


def fleet_with(replicas, eligible=False, **settings):
    fleet = Fleet(*sorted(replicas), eligible=eligible)
    fleet.create(
        "t",
        assignments={0: replicas},
        partitions=-1,
        factor=-1,
        configs={name.replace("_", "."): value for name, value in settings.items()},
    )
    return fleet


def state(fleet):
    partition = fleet.partition()
    return partition.leader, partition.isr, partition.recovery.eligible


def test_the_first_replica_in_sync_that_lives_leads():
    fleet = fleet_with([3, 1, 2])
    fleet.lose(3)
    assert state(fleet) == (1, (1, 2), ())
    fleet.come_back(3)
    assert state(fleet) == (1, (1, 2), ()), "who comes back is in sync when it has caught up"


def test_a_follower_that_is_lost_costs_no_leader_epoch():
    fleet = fleet_with([1, 2, 3])
    fleet.lose(2)
    assert state(fleet) == (1, (1, 3), ())
    assert (fleet.partition().leader_epoch, fleet.partition().partition_epoch) == (0, 1)


@pytest.mark.parametrize("of_topic", [True, False])
def test_who_left_before_the_minimum_was_lowered_has_not_all_that_was_acknowledged_since(of_topic):
    fleet = fleet_with([1, 2], eligible=True)
    place = (TOPIC, "t") if of_topic else (BROKER, "")
    fleet.alter(*place, ("min.insync.replicas", SET, "2"))
    fleet.settle()
    fleet.lose(2)
    assert state(fleet) == (1, (1,), (2,))
    fleet.alter(*place, ("min.insync.replicas", SET, "1"))
    fleet.settle()
    assert state(fleet) == (1, (1,), ())
    fleet.lose(1)
    fleet.come_back(2, clean=True)
    assert fleet.partition().leader == -1
    fleet.come_back(1)
    assert fleet.partition().leader == 1


def test_the_last_in_sync_replica_stays_so_and_leads_when_it_is_back():
    fleet = fleet_with([1, 2])
    fleet.lose(2)
    fleet.lose(1)
    assert state(fleet) == (-1, (1,), ())
    assert fleet.partition().leader_epoch == 1
    fleet.come_back(2)
    assert state(fleet) == (-1, (1,), ()), "2 was not in sync"
    fleet.come_back(1)
    assert state(fleet) == (1, (1,), ())
    assert fleet.partition().leader_epoch == 2
    assert fleet.controller.unclean_elections == 0


def test_an_unclean_leader_is_elected_only_where_the_topic_allows_it_and_counted():
    fleet = fleet_with([1, 2], unclean_leader_election_enable="true")
    fleet.lose(2)
    fleet.lose(1)
    assert fleet.partition().leader == -1
    fleet.come_back(2)
    assert state(fleet) == (2, (2,), ())
    assert fleet.partition().recovery.is_recovering
    assert fleet.controller.unclean_elections == 1
    fleet.come_back(1)
    assert fleet.new_isr(1, 2, recovery=1).error_code == ErrorCode.INVALID_REQUEST
    assert fleet.new_isr(2, recovery=1).error_code == ErrorCode.NONE
    assert fleet.partition().recovery.is_recovering
    assert fleet.new_isr(2, 1).error_code == ErrorCode.NONE
    assert not fleet.partition().recovery.is_recovering
    assert fleet.new_isr(2, recovery=1).error_code == ErrorCode.INVALID_REQUEST
    assert fleet.controller.unclean_elections == 1


def test_a_leader_is_found_as_soon_as_a_topic_allows_an_unclean_one():
    fleet = fleet_with([1, 2])
    fleet.lose(2)
    fleet.lose(1)
    fleet.come_back(2)
    fleet.alter(TOPIC, "t", ("unclean.leader.election.enable", SET, "true"))
    fleet.settle()
    assert state(fleet) == (2, (2,), ())
    assert fleet.controller.unclean_elections == 1


class TestEligibleLeaders:
    """KIP-966: on from metadata.version 23."""

    def test_below_the_least_who_leaves_is_eligible(self):
        fleet = fleet_with([1, 2, 3], eligible=True, min_insync_replicas="2")
        fleet.lose(3)
        assert state(fleet) == (1, (1, 2), ())
        fleet.lose(2)
        assert state(fleet) == (1, (1,), (2,))
        fleet.lose(1)
        assert state(fleet) == (-1, (), (1, 2))
        assert fleet.partition().recovery.last_known == (1,)

    def test_the_first_eligible_one_that_comes_back_leads_cleanly(self):
        fleet = fleet_with([1, 2, 3], eligible=True, min_insync_replicas="2")
        for node_id in (3, 2, 1):
            fleet.lose(node_id)
        fleet.come_back(3)
        assert fleet.partition().leader == -1
        fleet.come_back(2)
        assert state(fleet) == (2, (2,), (1,))
        assert fleet.partition().recovery.last_known == ()
        assert fleet.controller.unclean_elections == 0
        assert fleet.new_isr(2, 3).error_code == ErrorCode.NONE
        assert state(fleet) == (2, (2, 3), ()), "enough are in sync again"

    def test_the_in_sync_replicas_may_be_none_where_one_is_enough(self):
        fleet = fleet_with([1], eligible=True)
        fleet.lose(1)
        assert state(fleet) == (-1, (), (1,))
        fleet.come_back(1)
        assert state(fleet) == (1, (1,), ())

    def test_an_unclean_leader_makes_nobody_else_eligible(self):
        fleet = fleet_with(
            [1, 2],
            eligible=True,
            min_insync_replicas="1",
            unclean_leader_election_enable="true",
        )
        fleet.lose(2)
        fleet.lose(1)
        fleet.come_back(2)
        assert state(fleet) == (2, (2,), ())
        assert fleet.controller.unclean_elections == 1

    def test_the_level_is_raised_only_when_all_know_it(self):
        fleet = Fleet(1)
        old = fleet.registration(2).features
        old[0].max_supported_version = 21
        fleet.join(2, features=old)
        with pytest.raises(
            InvalidUpdateVersion, match=r"Node 2 does not know metadata\.version 23"
        ):
            fleet.raise_feature("metadata.version", 23)
        fleet.lose(2)
        fleet.come_back(2)
        assert fleet.raise_feature("metadata.version", 23) == 0
        assert fleet.image.features["metadata.version"] == 23
        for level, words in ((22, "22 would lower it"), (24, "can be raised to 23")):
            with pytest.raises(InvalidUpdateVersion, match=words):
                fleet.raise_feature("metadata.version", level)
        with pytest.raises(InvalidUpdateVersion, match="no feature"):
            fleet.raise_feature("group.version", 1)

    def test_it_is_lowered_where_all_that_was_written_can_still_be_read(self):
        fleet = Fleet(2)
        fleet.raise_feature("metadata.version", 22)
        assert fleet.raise_feature("metadata.version", 21, upgrade_type=2) == 0
        assert fleet.image.features["metadata.version"] == 21
        with pytest.raises(InvalidUpdateVersion, match="would not lower but raise"):
            fleet.raise_feature("metadata.version", 22, upgrade_type=2)
        fleet.raise_feature("metadata.version", 23)
        for kind in (2, 3):
            with pytest.raises(InvalidUpdateVersion, match="written since 23 could not be read"):
                fleet.raise_feature("metadata.version", 22, upgrade_type=kind)
        with pytest.raises(InvalidUpdateVersion, match="no upgrade type 7"):
            fleet.raise_feature("metadata.version", 22, upgrade_type=7)

    def test_a_controller_that_does_not_know_the_level_is_not_registered(self):
        fleet = Fleet(1)
        fleet.raise_feature("metadata.version", 23)
        old = ControllerRegistrationRequest(
            9, features=[Feature("metadata.version", 21, 22), TRANSACTIONS]
        )
        with pytest.raises(UnsupportedVersion, match="controller 9 works with 21 to 22"):
            fleet.ask("register_controller", old)
        old.features[0].max_supported_version = 23
        assert fleet.ask("register_controller", old).error_code == ErrorCode.NONE
        assert fleet.image.controllers.keys() == {9}

    def test_a_voter_that_has_not_told_its_levels_holds_up_the_raise(self):
        fleet = Fleet(1, controller_quorum_voters=("1@a:1", "9@a:2"))
        with pytest.raises(InvalidUpdateVersion, match="Controller 9 has not told"):
            fleet.raise_feature("metadata.version", 23)
        own = ControllerRegistrationRequest(
            9, features=[Feature("metadata.version", 21, 23), TRANSACTIONS]
        )
        fleet.ask("register_controller", own)
        assert fleet.raise_feature("metadata.version", 23) == 0

    def test_raised_it_holds_for_partitions_that_have_no_leader(self):
        fleet = fleet_with([1, 2])
        fleet.lose(2)
        fleet.lose(1)
        fleet.come_back(2)
        fleet.raise_feature("metadata.version", 23)
        fleet.settle()
        assert state(fleet) == (-1, (), (1,))
        fleet.come_back(1)
        assert state(fleet) == (1, (1,), ())


class TestAskedFor:
    def test_the_preferred_leader_takes_over_where_it_is_in_sync(self):
        fleet = fleet_with([1, 2])
        fleet.lose(1)
        fleet.come_back(1)
        [[answer]] = [result.partition_result for result in fleet.elect(PREFERRED)]
        assert answer.error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        fleet.new_isr(1, 2)
        [[answer]] = [result.partition_result for result in fleet.elect(PREFERRED)]
        assert answer.error_code == ErrorCode.NONE
        assert state(fleet)[:1] == (1,)
        [[answer]] = [result.partition_result for result in fleet.elect(PREFERRED)]
        assert answer.error_code == ErrorCode.ELECTION_NOT_NEEDED

    def test_any_leader_is_elected_where_there_is_none_and_counted(self):
        fleet = fleet_with([1, 2])
        [[answer]] = [result.partition_result for result in fleet.elect(UNCLEAN)]
        assert answer.error_code == ErrorCode.ELECTION_NOT_NEEDED
        fleet.lose(2)
        fleet.lose(1)
        [[answer]] = [result.partition_result for result in fleet.elect(UNCLEAN)]
        assert answer.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        fleet.come_back(2)
        [[answer]] = [result.partition_result for result in fleet.elect(UNCLEAN)]
        assert answer.error_code == ErrorCode.NONE
        assert state(fleet) == (2, (2,), ())
        assert fleet.controller.unclean_elections == 1

    def test_of_all_partitions_only_those_are_named_that_need_it(self):
        fleet = Fleet(1, 2)
        fleet.create("t", assignments={0: [1, 2], 1: [2, 1]}, partitions=-1, factor=-1)
        fleet.lose(1)
        fleet.come_back(1)
        fleet.new_isr(1, 2)
        [result] = fleet.elect(PREFERRED, None)
        assert [answer.partition_id for answer in result.partition_result] == [0]
        assert fleet.partition().leader == 1

    def test_what_is_not_there_or_named_twice(self):
        fleet = fleet_with([1, 2])
        fleet.lose(1)
        fleet.come_back(1)
        fleet.new_isr(1, 2)
        [result] = fleet.elect(PREFERRED, "t", 0, 0, 9)
        assert [answer.error_code for answer in result.partition_result] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert fleet.partition().leader_epoch == 2
        [result] = fleet.elect(PREFERRED, "gone")
        assert result.partition_result[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(InvalidRequest):
            fleet.elect(2)

    def test_one_request_is_bounded(self, monkeypatch):
        monkeypatch.setattr(requested_elections, "RECORDS_PER_REQUEST_MAX", 2)
        fleet = Fleet(1, 2)
        placed = {index: [1, 2] for index in range(3)}
        fleet.create("t", assignments=placed, partitions=-1, factor=-1)
        fleet.lose(1)
        fleet.come_back(1)
        for index in range(3):
            fleet.new_isr(1, 2, index=index)
        with pytest.raises(PolicyViolation):
            fleet.elect(PREFERRED, None)
        assert fleet.partition().leader == 2


class TestOurOwnTopics:
    def test_the_offsets_get_more_replicas_when_nodes_come(self):
        fleet = Fleet(1)
        fleet.create("__consumer_offsets", partitions=6)
        fleet.create("t", partitions=2)
        fleet.join(2)
        assert all(len(p.replicas) == 2 for p in partitions(fleet, "__consumer_offsets"))
        fleet.join(3)
        fleet.join(4)
        offsets = partitions(fleet, "__consumer_offsets")
        assert all(len(p.replicas) == len(p.directories) == 3 for p in offsets)
        assert all((p.leader, p.isr) == (1, (1,)) for p in offsets), "they have to catch up first"
        assert {node for p in offsets for node in p.replicas} == {1, 2, 3}
        assert all(len(p.replicas) == 1 for p in partitions(fleet, "t"))

    def test_another_rack_comes_first_and_the_load_is_even(self):
        fleet = Fleet(offsets_topic_replication_factor=1)
        fleet.join(1, rack="a")
        fleet.create("__consumer_offsets", partitions=6)
        for node_id, rack in ((2, "a"), (3, "b"), (4, "b")):
            fleet.join(node_id, rack=rack)
        rules = Rules(fleet.image, fleet.config.replace(offsets_topic_replication_factor=2))
        topic = fleet.image.topics_by_name["__consumer_offsets"]
        added = [
            change.replicas[1] for change in grown(rules, Standing(fleet.image.brokers), topic)
        ]
        assert sorted(added) == [3, 3, 3, 4, 4, 4]

    def test_workers_of_one_host_share_no_partition(self):
        fleet = Fleet()
        fleet.join(1, rack="h1", listeners=[at("h1", 1)])
        fleet.create("__consumer_offsets", partitions=6)
        fleet.join(11, rack="h1", listeners=[at("h1", 2)])
        assert all(p.replicas == (1,) for p in partitions(fleet, "__consumer_offsets"))
        fleet.join(2, rack="h2", listeners=[at("h2", 1)])
        fleet.join(12, rack="h2", listeners=[at("h2", 2)])
        assert all(len(p.replicas) == 2 for p in partitions(fleet, "__consumer_offsets"))


def at(host, port):
    return Listener("PLAINTEXT", host, port, 0)


def partitions(fleet, name):
    return list(fleet.image.topics_by_name[name].partitions.values())
