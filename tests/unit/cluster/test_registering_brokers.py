"""Who may be a broker of this cluster, and what a new process of an old broker may rest on."""

from __future__ import annotations

import pytest

from ottla.cluster import sweep
from ottla.errors import (
    BrokerNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRegistration,
    RequestTimedOut,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from ottla.wire.messages.broker_registration import Feature
from ottla.wire.messages.controller_registration import ControllerRegistrationRequest
from ottla.wire.messages.controller_registration import Feature as ControllerFeature
from ottla.wire.messages.controller_registration import Listener as ControllerListener
from ottla.wire.messages.metadata_records import FeatureLevelRecord
from unit.cluster.fleet import PARKED, SESSION_MS, Fleet


def test_a_broker_registers_fenced_with_all_it_tells_of_itself():
    fleet = Fleet()
    epoch = fleet.register(1, rack="r")
    broker = fleet.image.brokers[1]
    assert (broker.epoch, broker.is_fenced, broker.rack) == (epoch, True, "r")
    assert broker.incarnation_id == fleet.incarnation_of(1)
    assert broker.endpoints["PLAINTEXT"].host == "host-1"
    assert broker.log_dirs == (fleet.directory_of(1),)
    assert broker.features[0].name == "metadata.version"


def test_the_first_registration_begins_the_log_with_its_level():
    fleet = Fleet(1)
    first = fleet.controller.decode(None, fleet.log[0])
    assert first == FeatureLevelRecord(name="metadata.version", feature_level=21)


def test_every_registration_has_a_higher_epoch_also_after_the_highest_was_forgotten():
    fleet = Fleet(1, 2)
    epoch = fleet.image.brokers[2].epoch
    assert epoch > fleet.image.brokers[1].epoch
    fleet.unregister(2)
    fleet.new_process(2)
    assert fleet.register(2) > epoch
    with pytest.raises(StaleBrokerEpoch):
        fleet.beat(2, broker_epoch=epoch)


def test_the_same_process_may_register_again_and_keeps_its_epoch_and_standing():
    fleet = Fleet(1)
    epoch = fleet.image.brokers[1].epoch
    assert fleet.register(1, rack="other") == epoch
    assert fleet.image.brokers[1].is_active
    assert fleet.image.brokers[1].rack == "other"


def test_a_second_broker_with_the_id_of_one_that_lives_is_told_where_it_is():
    fleet = Fleet(1, 2)
    before = fleet.image.brokers[2]
    fleet.new_process(2)
    with pytest.raises(DuplicateBrokerRegistration, match="running at host-2:9092"):
        fleet.register(2)
    assert fleet.image.brokers[2] == before
    fleet.lose(2)
    assert fleet.register(2) > before.epoch


def test_a_fenced_broker_that_is_heard_of_lives_too():
    fleet = Fleet(1)
    fleet.register(2)
    fleet.beat(2, want_fence=True)
    fleet.new_process(2)
    with pytest.raises(DuplicateBrokerRegistration):
        fleet.register(2)
    fleet.pass_ms(SESSION_MS)
    fleet.register(2)


def test_a_session_that_was_only_given_by_a_new_controller_keeps_nobody_out():
    fleet = Fleet(1, 2)
    fleet.lead()
    fleet.new_process(2)
    assert fleet.register(2)
    fleet.lead()
    fleet.beat(1)
    fleet.new_process(1)
    with pytest.raises(DuplicateBrokerRegistration):
        fleet.register(1)


def test_a_broker_that_is_shutting_down_may_be_succeeded_at_once():
    fleet = Fleet(1, 2)
    fleet.create("t", factor=2)
    leader = fleet.partition().leader
    assert not fleet.beat(leader, want_shut_down=True).should_shut_down
    fleet.new_process(leader)
    assert fleet.register(leader)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"cluster_id": "another"}, InconsistentClusterId, "this is this-cluster"),
        ({"log_dirs": []}, InvalidRegistration, "no data directory"),
        ({"log_dirs": [bytes(16)]}, InvalidRegistration, "one has none"),
        ({"log_dirs": [b"d" * 16] * 2}, InvalidRegistration, "one id"),
        ({"log_dirs": [Fleet.directory_of(1)]}, InvalidRegistration, "broker 1 .host-1:9092."),
        ({"features": []}, UnsupportedVersion, "metadata.version 21"),
        ({"features": [Feature("metadata.version", 1, 20)]}, UnsupportedVersion, "1 to 20"),
        ({"features": [Feature("metadata.version", 22, 30)]}, UnsupportedVersion, "22 to 30"),
    ],
)
def test_who_does_not_belong_here_is_told_why_and_nothing_is_written(fields, error, words):
    fleet = Fleet(1)
    before = len(fleet.log)
    with pytest.raises(error, match=words):
        fleet.register(2, **fields)
    assert len(fleet.log) == before


def test_without_a_cluster_id_nobody_registers(cluster):
    request = Fleet().registration(2)
    with pytest.raises(InconsistentClusterId):
        cluster.controller.broker_registration(request, cluster.NOW, object())


class TestComingBack:
    def test_after_a_clean_stop_a_broker_stays_eligible(self):
        fleet = Fleet(1, 2, eligible=True)
        fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
        fleet.alter(2, "t", ("min.insync.replicas", 0, "2"))
        fleet.lose(2)
        assert fleet.partition().recovery.eligible == (2,)
        fleet.come_back(2, clean=True)
        assert fleet.partition().recovery.eligible == (2,)

    def test_without_proof_of_one_it_leaves_where_another_has_everything(self):
        fleet = Fleet(1, 2, eligible=True)
        fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
        fleet.alter(2, "t", ("min.insync.replicas", 0, "2"))
        fleet.lose(2)
        fleet.come_back(2, clean=False)
        assert fleet.partition().recovery.eligible == ()
        assert (fleet.partition().leader, fleet.partition().isr) == (1, (1,))

    @pytest.mark.parametrize("eligible", [False, True])
    def test_it_leaves_the_in_sync_replicas_and_the_lead_before_it_is_registered(self, eligible):
        fleet = Fleet(1, 2, eligible=eligible)
        fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
        fleet.lead()
        fleet.new_process(1)
        fleet.register(1)
        assert (fleet.partition().leader, fleet.partition().isr) == (2, (2,))
        assert fleet.partition().leader_epoch == 1

    @pytest.mark.parametrize("eligible", [False, True])
    def test_the_last_that_has_everything_stays_and_leads_again(self, eligible):
        fleet = Fleet(1, 2, eligible=eligible)
        fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
        fleet.lose(2)
        fleet.lose(1)
        assert fleet.partition().leader == -1
        fleet.come_back(2, clean=False)
        assert fleet.partition().leader == -1, "2 lacks what 1 has acknowledged alone"
        fleet.come_back(1, clean=False)
        assert (fleet.partition().leader, fleet.partition().isr) == (1, (1,))
        assert fleet.controller.unclean_elections == 0

    def test_the_first_of_two_that_were_cut_off_together_gives_way_to_the_other(self):
        fleet = Fleet(1, 2)
        fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
        fleet.lead()
        fleet.come_back(1, clean=False)
        fleet.lead()
        fleet.come_back(2, clean=False)
        assert fleet.partition().isr == (2,)
        assert fleet.partition().leader == 2

    @pytest.mark.parametrize("eligible", [False, True])
    def test_of_two_that_fell_silent_together_only_the_one_with_proof_may_lead(self, eligible):
        fleet = Fleet(1, 2, 3, eligible=eligible)
        fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
        fleet.lose(1, 2)
        partition = fleet.partition()
        assert partition.leader == -1
        assert partition.isr + partition.recovery.eligible == (1, 2)
        fleet.come_back(1, clean=False)
        assert fleet.partition().leader == -1
        fleet.come_back(2, clean=True)
        assert (fleet.partition().leader, fleet.partition().isr) == (2, (2,))

    def test_with_many_partitions_it_waits_until_it_has_left_them_all(self, monkeypatch):
        monkeypatch.setattr(sweep, "RECORDS_PER_STEP", 2)
        fleet = Fleet(1, 2)
        fleet.create("t", partitions=7, factor=2)
        fleet.lose(2)
        fleet.come_back(2)
        for index in range(7):
            fleet.new_isr(1, 2, index=index)
        fleet.lead()
        fleet.new_process(2)
        before = fleet.image.brokers[2]
        assert fleet.ask("broker_registration", fleet.registration(2)) is PARKED
        assert fleet.image.brokers[2] == before._replace(is_fenced=True)
        with pytest.raises(StaleBrokerEpoch):
            fleet.beat(2, broker_epoch=before.epoch)
        # Asked again, by the same process: the first question is answered, too.
        assert fleet.register(2) > before.epoch
        assert [type(reply) for reply in fleet.replies.values()] == [RequestTimedOut]
        assert all(fleet.partition(index=index).isr == (1,) for index in range(7))

    def test_a_controller_that_fails_in_between_leaves_it_unregistered(self, monkeypatch):
        fleet = Fleet(1, 2)
        fleet.create("t", partitions=7, factor=2)
        monkeypatch.setattr(sweep, "RECORDS_PER_STEP", 2)
        fleet.lead()
        fleet.new_process(2)
        assert fleet.ask("broker_registration", fleet.registration(2)) is PARKED
        assert len(fleet.controller.abandon()) == 1
        fleet.lead()
        fleet.settle()
        assert fleet.image.brokers[2].incarnation_id != fleet.incarnation_of(2)
        fleet.register(2)
        assert fleet.image.brokers[2].incarnation_id == fleet.incarnation_of(2)


def test_an_unregistered_broker_is_gone_and_its_partitions_move():
    fleet = Fleet(1, 2, 3)
    fleet.create("t", assignments={0: [2, 3]}, partitions=-1, factor=-1)
    assert fleet.unregister(2).error_code == 0
    assert 2 not in fleet.image.brokers
    assert (fleet.partition().leader, fleet.partition().isr) == (3, (3,))
    with pytest.raises(BrokerNotRegistered):
        fleet.unregister(2)


def test_a_controller_registers():
    fleet = Fleet()
    request = ControllerRegistrationRequest(
        controller_id=3,
        incarnation_id=b"i" * 16,
        listeners=[ControllerListener("C", "h", 9093, 0)],
        features=[
            ControllerFeature("metadata.version", 21, 23),
            ControllerFeature("transaction.version", 0, 2),
        ],
    )
    assert fleet.ask("register_controller", request).error_code == 0
    controller = fleet.image.controllers[3]
    assert (controller.incarnation_id, controller.endpoints["C"].port) == (b"i" * 16, 9093)
    assert controller.features == (("metadata.version", 21, 23), ("transaction.version", 0, 2))
