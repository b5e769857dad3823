from __future__ import annotations

import sys

import pytest

from ottla.cluster.image import NO_RECOVERY, InconsistentMetadata, MetadataImage
from ottla.wire.messages.create_topics import CreateTopicsRequest
from ottla.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)

ID, OTHER = b"\x01" * 16, b"\x02" * 16


def folded(*records):
    image = MetadataImage()
    for record in records:
        image.apply(record)
    return image


def partition(index=0, **fields):
    defaults = {"replicas": [1, 2], "isr": [1, 2], "leader": 1}
    return PartitionRecord(
        partition_id=index, topic_id=ID, leader_epoch=0, partition_epoch=0, **defaults | fields
    )


TOPIC = TopicRecord(name="t", topic_id=ID)


def test_a_change_that_names_a_leader_begins_a_new_epoch_even_with_the_same_leader():
    image = folded(TOPIC, partition(), PartitionChangeRecord(partition_id=0, topic_id=ID, leader=1))
    after = image.topics_by_name["t"].partitions[0]
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 1, 1)


def test_a_change_of_the_in_sync_replicas_keeps_the_leader_epoch():
    image = folded(TOPIC, partition(), PartitionChangeRecord(partition_id=0, topic_id=ID, isr=[1]))
    after = image.topics_by_name["t"].partitions[0]
    assert (after.isr, after.replicas) == ((1,), (1, 2))
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 0, 1)


def test_whoever_holds_a_partition_holds_a_fact():
    image = folded(TOPIC, partition())
    held = image.topics_by_name["t"].partitions[0]
    image.apply(PartitionChangeRecord(partition_id=0, topic_id=ID, leader=2))
    assert (held.leader, held.leader_epoch) == (1, 0)


def test_partitions_share_equal_replica_lists():
    image = folded(TOPIC, *(partition(index) for index in range(1_000)))
    partitions = image.topics_by_name["t"].partitions.values()
    assert (
        len({id(item.replicas) for item in partitions} | {id(item.isr) for item in partitions}) == 1
    )
    assert max(sys.getsizeof(item) for item in partitions) < 120


@pytest.mark.parametrize(
    "record",
    [
        TopicRecord(name="t", topic_id=OTHER),
        TopicRecord(name="other", topic_id=ID),
        RemoveTopicRecord(topic_id=OTHER),
        PartitionRecord(partition_id=0, topic_id=OTHER),
        PartitionChangeRecord(partition_id=0, topic_id=OTHER, leader=1),
        PartitionChangeRecord(partition_id=9, topic_id=ID, leader=1),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1),
        ProducerIdsRecord(next_producer_id=1000),
        CreateTopicsRequest(),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_does_not_follow_is_refused_and_changes_nothing(record):
    history = (TOPIC, partition(), ProducerIdsRecord(next_producer_id=1000))
    image = folded(*history)
    with pytest.raises(InconsistentMetadata):
        image.apply(record)
    assert image == folded(*history)


def test_a_broker_is_fenced_unfenced_and_shut_down_by_changes():
    def change(**fields):
        return BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, **fields)

    image = folded(RegisterBrokerRecord(broker_id=1, broker_epoch=5, log_dirs=[ID]))
    assert image.brokers[1].is_fenced
    image.apply(change(fenced=-1))
    assert image.brokers[1].is_active
    image.apply(change(in_controlled_shutdown=1, log_dirs=[OTHER]))
    assert not image.brokers[1].is_active
    assert not image.brokers[1].is_fenced
    assert image.brokers[1].log_dirs == (OTHER,)
    image.apply(change(fenced=1))
    assert image.brokers[1].is_fenced
    with pytest.raises(InconsistentMetadata):
        image.apply(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=-1))


def test_features_come_and_go_and_nothing_does_nothing():
    image = folded(FeatureLevelRecord(name="metadata.version", feature_level=7), NoOpRecord())
    assert image.features == {"metadata.version": 7}
    image.apply(FeatureLevelRecord(name="metadata.version", feature_level=0))
    assert image == MetadataImage()


def test_the_older_records_fence_and_unfence_and_a_broker_can_be_forgotten():
    image = folded(RegisterBrokerRecord(broker_id=1, broker_epoch=5))
    image.apply(UnfenceBrokerRecord(id=1, epoch=5))
    assert image.brokers[1].is_active
    image.apply(FenceBrokerRecord(id=1, epoch=5))
    assert image.brokers[1].is_fenced
    for record in (
        UnfenceBrokerRecord(id=1, epoch=4),
        FenceBrokerRecord(id=2, epoch=5),
        UnregisterBrokerRecord(broker_id=1, broker_epoch=4),
    ):
        with pytest.raises(InconsistentMetadata):
            image.apply(record)
    image.apply(UnregisterBrokerRecord(broker_id=1, broker_epoch=5))
    assert image.brokers == {}


def test_eligible_leaders_and_the_state_of_recovery_stay_until_they_are_changed():
    image = folded(TOPIC, partition(eligible_leader_replicas=[2], leader_recovery_state=1))
    image.apply(PartitionChangeRecord(partition_id=0, topic_id=ID, last_known_elr=[1]))
    recovery = image.topics_by_name["t"].partitions[0].recovery
    assert recovery == ((2,), (1,), True)
    image.apply(
        PartitionChangeRecord(
            partition_id=0,
            topic_id=ID,
            eligible_leader_replicas=[],
            last_known_elr=[],
            leader_recovery_state=0,
        )
    )
    assert image.topics_by_name["t"].partitions[0].recovery is NO_RECOVERY
