from __future__ import annotations

import pytest

from ottla.cluster.framing import decode_record, encode_record
from ottla.wire.codec import MalformedMessage
from ottla.wire.messages.metadata_records import (
    ConfigRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

ID = bytes(range(16))

# Frame version 1, type, version, then the body in Kafka's flexible encoding, written by hand.
VECTORS = [
    (NoOpRecord(), "01 14 00 00"),
    (TopicRecord(name="foo", topic_id=ID), f"01 02 00 04 666f6f {ID.hex()} 00"),
    (RemoveTopicRecord(topic_id=ID), f"01 09 00 {ID.hex()} 00"),
    (
        ConfigRecord(resource_type=2, resource_name="t", name="k", value="v"),
        "01 04 00 02 0274 026b 0276 00",
    ),
    (
        ConfigRecord(resource_type=4, resource_name="", name="k", value=None),
        "01 04 00 04 01 026b 00 00",
    ),
    (
        PartitionRecord(
            partition_id=1,
            topic_id=ID,
            replicas=[1, 2],
            isr=[1],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=[ID, ID],
        ),
        f"01 03 01 00000001 {ID.hex()} 03 00000001 00000002 02 00000001 01 01 00000001 00000000"
        f" 00000000 03 {ID.hex()} {ID.hex()} 00",
    ),
    (
        # One tagged field: tag 1, four bytes, the leader.
        PartitionChangeRecord(partition_id=3, topic_id=ID, leader=1),
        f"01 05 01 00000003 {ID.hex()} 01 01 04 00000001",
    ),
    (
        # Eligible leaders need version 2; nobody writes it before the cluster is of that level.
        PartitionChangeRecord(partition_id=3, topic_id=ID, eligible_leader_replicas=[]),
        f"01 05 02 00000003 {ID.hex()} 01 06 01 01",
    ),
    (
        ProducerIdsRecord(broker_id=1, broker_epoch=2, next_producer_id=1000),
        "01 0f 00 00000001 0000000000000002 00000000000003e8 00",
    ),
]


@pytest.mark.parametrize(("record", "expected"), VECTORS)
def test_records_are_framed_as_kraft_does(record, expected):
    value = encode_record(record)
    assert value.hex() == expected.replace(" ", "")
    assert decode_record(value) == record


def test_a_registration_keeps_its_directories():
    record = RegisterBrokerRecord(broker_id=1, incarnation_id=ID, fenced=False, log_dirs=[ID])
    assert decode_record(encode_record(record)) == record


def test_a_type_of_a_newer_version_is_skipped():
    assert decode_record(bytes.fromhex("01 7d 00 ff")) is None


@pytest.mark.parametrize(
    "value",
    ["", "01", "0102", "00 14 00 00", "02 14 00 00", "01 14 01 00", "01 14 00", "01 14 00 00 00"],
    ids=[
        "empty",
        "cut in the type",
        "cut in the version",
        "frame version 0",
        "frame version 2",
        "unknown version",
        "no body",
        "garbage after it",
    ],
)
def test_what_is_no_frame_is_refused(value):
    with pytest.raises(MalformedMessage):
        decode_record(bytes.fromhex(value))
