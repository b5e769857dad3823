"""Registration, leader epochs and producer ids: what a restart must and must not change."""

from __future__ import annotations

import pytest

from ottla.cluster.brokers import EPOCHS_PER_BATCH_MAX
from ottla.errors import CannotStart
from ottla.wire.messages.metadata_records import FeatureLevelRecord


def epochs(cluster):
    return [
        partition.leader_epoch
        for topic in cluster.image.topics_by_name.values()
        for partition in topic.partitions.values()
    ]


def test_each_registration_has_a_higher_epoch(cluster):
    first = cluster.image.brokers[1].epoch
    cluster.restart()
    assert cluster.start_broker(1) == first + 1
    assert cluster.start_broker(2) == first + 2
    assert cluster.image.brokers[1].epoch == first + 1


def test_a_registered_broker_is_available_under_its_new_endpoint(cluster):
    cluster.restart()
    cluster.start_broker(1, rack="r", port=9999)
    broker = cluster.image.brokers[1]
    assert broker.is_active
    assert (broker.rack, broker.endpoints["PLAINTEXT"].port) == ("r", 9999)


def test_every_start_begins_a_new_leader_epoch_of_every_partition(cluster):
    cluster.create("a", partitions=3)
    cluster.create("b", partitions=2)
    assert epochs(cluster) == [0] * 5
    cluster.restart()
    cluster.start_broker(1)
    assert epochs(cluster) == [1] * 5
    cluster.restart()
    cluster.start_broker(1)
    assert epochs(cluster) == [2] * 5


def test_many_partitions_are_raised_in_bounded_batches_and_each_once(cluster):
    for number in range(3):
        cluster.create(f"t{number}", partitions=4_000)
    sizes = []
    cursor = (b"", -1)
    while cursor is not None:
        cursor = cluster.ask("raise_leader_epochs", 1, cursor)
        sizes.append(len(cluster.last_records))
    assert sizes == [EPOCHS_PER_BATCH_MAX, EPOCHS_PER_BATCH_MAX, 2_000]
    assert epochs(cluster) == [1] * 12_000


def test_only_the_partitions_that_a_broker_leads_get_a_new_epoch(three_brokers):
    three_brokers.create("t", partitions=-1, factor=-1, assignments={0: [1, 2], 1: [2, 1]})
    three_brokers.start_broker(2)
    assert epochs(three_brokers) == [0, 1]


def test_producer_ids_are_taken_in_blocks(cluster):
    before = len(cluster.log)
    assert [cluster.new_producer_id() for _ in range(1_000)] == list(range(1_000))
    assert len(cluster.log) == before + 1
    assert cluster.new_producer_id() == 1_000
    assert len(cluster.log) == before + 2


def test_a_producer_id_is_never_reused_after_a_restart(cluster):
    used = {cluster.new_producer_id() for _ in range(3)}
    cluster.restart()
    assert cluster.new_producer_id() == 1_000
    assert cluster.new_producer_id() not in used


def test_an_abandoned_controller_forgets_its_block_of_producer_ids(cluster):
    cluster.new_producer_id()
    cluster.controller.abandon()
    for value in cluster.log:
        cluster.controller.apply(cluster.controller.decode(None, value), 0)
    assert cluster.new_producer_id() == 1_000


def test_a_controller_has_no_timers(cluster):
    assert cluster.controller.next_deadline_ms() is None
    assert cluster.controller.on_deadline(cluster.NOW).records == []


def feature_records(cluster):
    decoded = (cluster.controller.decode(None, value) for value in cluster.log)
    return [record for record in decoded if isinstance(record, FeatureLevelRecord)]


def test_a_new_log_begins_with_the_version_of_its_records(cluster):
    first = [cluster.controller.decode(None, value) for value in cluster.log[:2]]
    assert first == [
        FeatureLevelRecord(name="metadata.version", feature_level=21),
        FeatureLevelRecord(name="transaction.version", feature_level=2),
    ]
    cluster.restart()
    cluster.start_broker(1)
    assert feature_records(cluster) == first
    assert cluster.cache.image.features == {"metadata.version": 21, "transaction.version": 2}


def test_a_log_that_has_begun_gets_no_feature_before_somebody_asks_for_it(cluster):
    """Nodes of an earlier version may read it."""
    del cluster.log[1]
    cluster.restart()
    cluster.start_broker(1)
    assert cluster.cache.image.features == {"metadata.version": 21}


def test_a_log_from_before_there_were_versions_gets_its_own_at_the_next_start(cluster):
    cluster.create("t")
    del cluster.log[:2]
    cluster.restart()
    assert cluster.image.features == {}
    cluster.start_broker(1)
    assert len(feature_records(cluster)) == 2
    assert cluster.cache.image.features == {"metadata.version": 21, "transaction.version": 2}


@pytest.mark.parametrize("level", [20, 24])
def test_records_of_another_version_are_not_guessed_at(cluster, level):
    cluster.image.apply(FeatureLevelRecord(name="metadata.version", feature_level=level))
    with pytest.raises(CannotStart, match=f"metadata.version {level}"):
        cluster.start_broker(1)
