"""Where replicas lie: what a broker tells, and what follows when a directory fails or returns."""

from __future__ import annotations

from ottla.cluster import directories
from ottla.cluster.brokers import FIRST, Registration
from ottla.cluster.directories import UNASSIGNED_DIRECTORY, directory_of, is_reserved
from ottla.wire.messages.metadata_records import BrokerRegistrationChangeRecord

A, B, C = (bytes([number]) * 16 for number in (0xA, 0xB, 0xC))


def start(cluster, *directory_ids):
    cluster.ask("register_broker", Registration(1, bytes(16), [], None, directory_ids))
    cursor = FIRST
    while cursor is not None:
        cursor = cluster.ask("raise_leader_epochs", 1, cursor)


def places(cluster, topic="t"):
    partitions = cluster.image.topics_by_name[topic].partitions
    return [directory_of(partition, 1) for partition in partitions.values()]


def leaders(cluster, topic="t"):
    partitions = cluster.image.topics_by_name[topic].partitions
    return [partition.leader for partition in partitions.values()]


def told(cluster, *directory_ids):
    topic_id = cluster.image.topics_by_name["t"].id
    return [(topic_id, index, each) for index, each in enumerate(directory_ids)]


def test_ids_that_kafka_reserves_are_no_directories():
    assert is_reserved(bytes(16))
    assert is_reserved(UNASSIGNED_DIRECTORY)
    assert is_reserved(bytes(15) + bytes([99]))
    assert not is_reserved(bytes(15) + bytes([100]))
    assert not is_reserved(A)


def test_with_one_directory_the_place_is_known_at_once(cluster):
    start(cluster, A)
    cluster.create("t", partitions=2)
    assert places(cluster) == [A, A]


def test_with_several_the_broker_tells_and_each_news_is_written_once(cluster):
    start(cluster, A, B)
    cluster.create("t", partitions=3)
    assert places(cluster) == [None, None, None]
    assert cluster.ask("assign_directories", 1, told(cluster, A, B, A)) == 3
    assert places(cluster) == [A, B, A]
    assert cluster.ask("assign_directories", 1, told(cluster, A, B, B)) == 1
    assert cluster.ask("assign_directories", 1, [(bytes(16), 0, A)]) == 0, "it is gone"
    assert leaders(cluster) == [1, 1, 1]
    cluster.restart()
    assert places(cluster) == [A, B, B]


def test_a_failed_directory_takes_the_leaders_of_its_partitions(cluster, monkeypatch):
    monkeypatch.setattr(directories, "RECORDS_PER_BATCH_MAX", 2)
    start(cluster, A, B)
    cluster.create("t", partitions=7)
    cluster.ask("assign_directories", 1, told(cluster, *[A, B, B, A, B, B, B]))
    epochs = [p.leader_epoch for p in cluster.image.topics_by_name["t"].partitions.values()]
    sizes = []
    while cluster.ask("take_directory_offline", 1, B):
        sizes.append(len(cluster.last_records))
    assert sizes == [2, 2, 2]
    assert isinstance(cluster.last_records, list)
    assert leaders(cluster) == [1, -1, -1, 1, -1, -1, -1]
    assert cluster.image.brokers[1].log_dirs == (A,)
    after = [p.leader_epoch for p in cluster.image.topics_by_name["t"].partitions.values()]
    assert [b - a for a, b in zip(epochs, after, strict=True)] == [0, 1, 1, 0, 1, 1, 1]


def test_the_broker_loses_the_directory_with_the_last_record(cluster):
    start(cluster, A, B)
    cluster.create("t", partitions=2)
    cluster.ask("assign_directories", 1, told(cluster, A, B))
    cluster.ask("take_directory_offline", 1, B)
    assert isinstance(cluster.last_records[-1], BrokerRegistrationChangeRecord)
    assert cluster.ask("take_directory_offline", 1, C) == 0


def test_a_directory_that_is_missing_or_back_at_a_start_decides_who_leads(cluster):
    start(cluster, A, B)
    cluster.create("t", partitions=3)
    cluster.ask("assign_directories", 1, told(cluster, A, B))
    start(cluster, A)
    assert leaders(cluster) == [1, -1, 1], "the third has no place yet"
    start(cluster, A, C)
    assert leaders(cluster) == [1, -1, 1]
    start(cluster, C, B, A)
    assert leaders(cluster) == [1, 1, 1]
