"""Producer ids in blocks, and where replicas lie, as brokers ask for and tell it."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode, StaleBrokerEpoch
from ottla.wire.messages import assign_replicas_to_dirs as dirs
from ottla.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from unit.cluster.fleet import Fleet

A, B = b"\xaa" * 16, b"\xbb" * 16


def block(fleet, node_id, epoch=None):
    epoch = fleet.image.brokers[node_id].epoch if epoch is None else epoch
    answer = fleet.ask("allocate_producer_ids", AllocateProducerIdsRequest(node_id, epoch))
    return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)


def test_no_id_is_in_two_blocks_whoever_asks_and_whoever_leads():
    fleet = Fleet(1, 2)
    blocks = [block(fleet, 1), block(fleet, 2)]
    own = fleet.new_producer_id()
    fleet.lead()
    blocks.append(block(fleet, 1))
    ids = [producer_id for each in blocks for producer_id in each]
    assert len(ids) == len(set(ids)) == 3_000
    assert own not in ids
    with pytest.raises(StaleBrokerEpoch):
        block(fleet, 1, epoch=99)


def assign(fleet, node_id, *places):
    request = dirs.AssignReplicasToDirsRequest(
        node_id,
        fleet.image.brokers[node_id].epoch,
        [
            dirs.DirectoryData(directory, [dirs.TopicData(topic_id, [dirs.PartitionData(index)])])
            for directory, topic_id, index in places
        ],
    )
    response = fleet.ask("assign_replicas_to_dirs", request)
    return [
        partition.error_code
        for directory in response.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]


def test_a_broker_tells_where_its_replicas_lie():
    fleet = Fleet()
    fleet.join(1, log_dirs=[A, B])
    fleet.join(2)
    fleet.create("t", assignments={0: [1, 2], 1: [2, 1]}, partitions=-1, factor=-1)
    fleet.create("u", assignments={0: [2]}, partitions=-1, factor=-1)
    topic_id, other_id = (fleet.image.topics_by_name[name].id for name in "tu")
    codes = assign(
        fleet,
        1,
        (A, topic_id, 0),
        (B, topic_id, 1),
        (A, topic_id, 7),
        (A, b"x" * 16, 0),
        (A, other_id, 0),
    )
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
    assert fleet.partition(index=0).directories == (A, fleet.directory_of(2))
    assert fleet.partition(index=1).directories == (fleet.directory_of(2), B)


def test_a_replica_in_a_directory_that_has_failed_does_not_lead():
    fleet = Fleet()
    fleet.join(1, log_dirs=[A, B])
    fleet.join(2)
    fleet.create("t", assignments={0: [1, 2]}, partitions=-1, factor=-1)
    fleet.beat(1, offline_log_dirs=[B])
    assert fleet.partition().leader == 1
    assert assign(fleet, 1, (B, fleet.image.topics_by_name["t"].id, 0)) == [ErrorCode.NONE]
    fleet.settle()
    assert (fleet.partition().leader, fleet.partition().isr) == (2, (2,))
