"""What the broker sees of the metadata, and what it is told when that changes."""

from __future__ import annotations

import pytest

from ottla.broker.control.metadata import (
    BrokerConfigChanged,
    BrokersChanged,
    LeaderChanged,
    MetadataCache,
    PartitionsAdded,
    ReplicasChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from ottla.cluster.snapshot import copy_of
from ottla.errors import UnknownTopicId, UnknownTopicOrPartition
from ottla.wire.messages.metadata_records import PartitionChangeRecord

TOPIC, BROKER = 2, 4
SET = 0


@pytest.fixture
def heard(cluster):
    """The changes of each batch, in order."""
    batches = []
    cluster.cache.on_change(lambda changes: batches.append(list(changes)))
    return batches


def test_a_created_topic_is_told_once_with_all_its_partitions(cluster, heard):
    cluster.create("t", partitions=3, configs={"retention.ms": "1"})
    [[change]] = heard
    assert isinstance(change, TopicCreated)
    assert change.topic is cluster.cache.topic("t")
    assert len(change.topic.partitions) == 3


def test_a_deleted_topic_is_told_with_what_is_to_be_removed(cluster, heard):
    topic_id = cluster.create("t", partitions=3).topic_id
    cluster.delete("t")
    assert heard[1:] == [[TopicDeleted("t", topic_id, 3)]]


def test_added_partitions_are_told_by_their_indexes(cluster, heard):
    cluster.create("t", partitions=2)
    cluster.grow("t", 4)
    assert heard[1:] == [[PartitionsAdded(cluster.cache.topic("t"), (2, 3))]]


def test_a_new_leader_epoch_is_told_for_each_partition(cluster, heard):
    cluster.create("t", partitions=2)
    cluster.start_broker(1)
    registered, raised = heard[1:]
    assert registered == [BrokersChanged()]
    topic = cluster.cache.topic("t")
    assert raised == [LeaderChanged(topic, index, topic.partitions[index]) for index in (0, 1)]
    assert raised[0].partition.leader_epoch == 1


def test_a_change_without_a_new_leader_is_no_new_leader(cluster, heard):
    topic_id = cluster.create("t").topic_id
    cluster.cache.apply(PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[1]))
    topic = cluster.cache.topic("t")
    assert heard[1:] == [[ReplicasChanged(topic, 0, topic.partitions[0])]]


def test_a_leader_hears_of_every_partition_epoch(cluster, heard):
    """The controller takes no proposal that rests on an older one."""
    topic_id = cluster.create("t").topic_id
    before = cluster.cache.topic("t").partitions[0].partition_epoch
    place = PartitionChangeRecord(partition_id=0, topic_id=topic_id, directories=[bytes(16)])
    cluster.cache.apply(place)
    [[change]] = heard[1:]
    assert isinstance(change, ReplicasChanged)
    assert change.partition.partition_epoch == before + 1


def test_a_topic_that_comes_and_goes_within_a_batch_is_not_told(cluster, heard):
    cluster.commits_at_once = False
    cluster.create("t")
    cluster.delete("t")
    assert not cluster.cache.has_topic("t")
    cluster.commit()
    assert heard == []


def test_a_recreated_topic_is_first_gone_and_then_new(cluster, heard):
    old = cluster.create("t").topic_id
    cluster.commits_at_once = False
    cluster.delete("t")
    new = cluster.create("t", partitions=2).topic_id
    assert cluster.cache.topic("t").id == old
    cluster.commit()
    assert heard[1:] == [[TopicDeleted("t", old, 1), TopicCreated(cluster.cache.topic("t"))]]
    assert cluster.cache.topic("t").id == new


def test_what_happens_to_a_new_topic_within_its_batch_is_part_of_its_creation(cluster, heard):
    cluster.commits_at_once = False
    cluster.create("t")
    cluster.grow("t", 3)
    cluster.alter(TOPIC, "t", ("segment.ms", SET, "9"))
    cluster.ask("raise_leader_epochs", 1, (b"", -1))
    cluster.commit()
    assert heard == [[TopicCreated(cluster.cache.topic("t"))]]
    assert len(cluster.cache.topic("t").partitions) == 3


def test_partitions_added_to_a_topic_that_goes_within_the_batch_are_not_told(cluster, heard):
    topic_id = cluster.create("t", partitions=2).topic_id
    cluster.commits_at_once = False
    cluster.grow("t", 5)
    cluster.delete("t")
    cluster.commit()
    assert heard[1:] == [[TopicDeleted("t", topic_id, 2)]]


def test_a_topics_settings_are_resolved_once_and_again_after_a_change(cluster, heard):
    cluster.create("t", configs={"segment.ms": "5"})
    before = cluster.cache.topic_config("t")
    assert before.segment_ms == 5
    assert cluster.cache.topic_config("t") is before
    cluster.alter(TOPIC, "t", ("segment.ms", SET, "6"))
    assert heard[1:] == [[TopicConfigChanged(cluster.cache.topic("t"))]]
    assert cluster.cache.topic_config("t").segment_ms == 6


def test_topics_without_settings_share_one_configuration(cluster):
    cluster.create("a", "b")
    assert cluster.cache.topic_config("a") is cluster.cache.topic_config("b")


def test_a_deleted_topics_settings_do_not_come_back_with_its_name(cluster):
    cluster.create("t", configs={"segment.ms": "5"})
    assert cluster.cache.topic_config("t").segment_ms == 5
    cluster.delete("t")
    cluster.create("t")
    assert cluster.cache.topic_config("t").segment_ms != 5


def test_a_brokers_settings_are_told_and_so_is_every_topic(cluster, heard):
    cluster.create("a", "b")
    heard.clear()
    cluster.alter(BROKER, "", ("log.segment.bytes", SET, "1000"))
    [changes] = heard
    assert changes[:2] == [TopicConfigChanged(cluster.cache.topic(name)) for name in ("a", "b")]
    assert changes[2] == BrokerConfigChanged(cluster.cache.broker_config)
    assert changes[2].config.log_segment_bytes == 1000


def test_what_does_not_exist_is_said_by_name_and_by_id(cluster):
    cluster.create("t")
    with pytest.raises(UnknownTopicOrPartition):
        cluster.cache.topic("nobody")
    with pytest.raises(UnknownTopicOrPartition):
        cluster.cache.leader_of("t", 1)
    with pytest.raises(UnknownTopicId):
        cluster.cache.topic_by_id(b"\x09" * 16)
    assert cluster.cache.leader_of("t", 0) == 1


def test_what_was_built_from_a_topic_is_kept_until_the_topic_or_a_broker_changes(cluster):
    cluster.create("t")
    cluster.create("other")
    built = []

    def build(topic):
        built.append(topic.name)
        return len(topic.partitions)

    def memo():
        return cluster.cache.kept_for_topic(cluster.cache.topic("t"), "key", build)

    assert [memo(), memo()] == [1, 1]
    cluster.grow("other", 2)
    assert memo() == 1
    assert built == ["t"]
    cluster.grow("t", 2)
    assert memo() == 2
    cluster.start_broker(2)
    memo()
    cluster.delete("t")
    cluster.create("t")
    assert memo() == 1
    assert built == ["t"] * 4


def test_what_was_built_of_everything_is_kept_until_anything_changes(cluster):
    def built():
        return cluster.cache.kept_for_image("key", lambda: [*cluster.cache.image.topics_by_name])

    cluster.create("t")
    assert built() is built()
    cluster.create("u")
    assert built() == ["t", "u"]


def test_what_is_kept_of_everything_is_bounded(cluster):
    for key in range(1_000):
        cluster.cache.kept_for_image(key, object)
    assert len(cluster.cache._kept_for_image) <= 16


def test_a_snapshot_takes_the_place_of_all_that_was_known(cluster, heard):
    """Told is what has changed, as if each record on the way had been read."""
    gone_id = cluster.create("gone").topic_id
    cluster.create("grown", partitions=1, configs={"retention.ms": "1"})
    cluster.create("same")
    behind = MetadataCache(cluster.cache._config)
    behind.committed(list(copy_of(cluster.cache.image).records()))
    told = []
    behind.on_change(told.extend)
    cluster.delete("gone")
    cluster.create("gone", partitions=2)
    cluster.grow("grown", 2)
    behind.replaced(list(copy_of(cluster.cache.image).records()))
    assert behind.image == cluster.cache.image
    assert told[:2] == [TopicDeleted("gone", gone_id, 1), TopicCreated(behind.topic("gone"))]
    assert PartitionsAdded(behind.topic("grown"), (1,)) in told
    assert not [change for change in told if isinstance(change, LeaderChanged | ReplicasChanged)]
    assert behind.topic_config("grown").retention_ms == 1
    cluster.start_broker(1)
    told.clear()
    behind.replaced(list(copy_of(cluster.cache.image).records()))
    topic = behind.topic("same")
    assert LeaderChanged(topic, 0, topic.partitions[0]) in told


def test_topics_that_a_start_misses_in_a_snapshot_are_known_as_deleted(cluster):
    topic_id = cluster.create("t").topic_id
    behind = MetadataCache(cluster.cache._config)
    # Some are told of changes before the start has looked at its files.
    behind.on_change(lambda changes: None)
    behind.committed(list(copy_of(cluster.cache.image).records()))
    cluster.delete("t")
    behind.replaced(list(copy_of(cluster.cache.image).records()))
    assert behind.deleted_ids == {topic_id}


def test_a_start_knows_what_has_moved_away_from_its_node_by_the_log_and_by_snapshots(cluster):
    cluster.start_broker(2)
    topic_id = cluster.create("t", partitions=2, assignments=None).topic_id
    cache = MetadataCache(cluster.cache._config)
    cache.on_change(lambda changes: None)
    here = cache._config.node_id

    def replicas(index, *nodes):
        return PartitionChangeRecord(
            partition_id=index, topic_id=topic_id, replicas=list(nodes), isr=[nodes[0]]
        )

    cache.committed(list(copy_of(cluster.cache.image).records()))
    cache.committed([replicas(0, here, 2), replicas(1, here, 2)])
    cache.committed([replicas(0, 2), replicas(1, 2)])
    assert cache.departed == {(topic_id, 0), (topic_id, 1)}
    cache.committed([replicas(1, 2, here)])
    assert cache.departed == {(topic_id, 0)}
    later = MetadataCache(cluster.cache._config)
    later.committed(list(copy_of(cache.image).records()))
    later.committed([replicas(1, 2)])
    cache.replaced(list(copy_of(later.image).records()))
    assert cache.departed == {(topic_id, 0), (topic_id, 1)}
    assert cache.deleted_ids == set()


def test_who_fails_at_a_change_is_told_of_and_the_others_hear_of_it(cluster):
    missed, told = [], []

    def fail(changes):
        raise ZeroDivisionError("a fault of ours")

    cluster.cache.on_missed = missed.append
    cluster.cache.on_change(fail)
    cluster.cache.on_change(told.extend)
    cluster.create("t")
    assert "a fault of ours" in missed[0]
    assert isinstance(told[0], TopicCreated)
    cluster.cache.replaced(list(copy_of(cluster.cache.image).records()))
    assert len(missed) == 2
