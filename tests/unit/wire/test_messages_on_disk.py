"""Records of our own logs and versions that only old clients speak: kio knows none of them.

The bytes were put together by hand from the field lists of Kafka 4.0.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from ottla.wire.codec import decode, encode
from ottla.wire.messages import group_records as groups
from ottla.wire.messages import metadata_records as metadata
from ottla.wire.messages import produce
from unit.wire.catalogue import all_versions, messages, name_of
from unit.wire.test_messages_against_kio import is_in_kio

ID = bytes(range(16))
ID_HEX = ID.hex()


@pytest.mark.parametrize(
    ("kind", "version"), [pair for pair in all_versions() if not is_in_kio(*pair)], ids=name_of
)
def test_what_is_written_is_read_again(kind, version):
    @given(messages(kind, version))
    def check(message):
        assert decode(kind, encode(message, version), version) == message

    check()


VECTORS = [
    (groups.OffsetCommitKey("g", "t", 3), 1, "0001 67 | 0001 74 | 00000003"),
    (
        groups.OffsetCommitValue(5, 7, "m", 1000, 2000),
        0,
        "0000000000000005 | 0001 6d | 00000000000003e8",
    ),
    (
        groups.OffsetCommitValue(5, 7, "m", 1000, 2000),
        1,
        "0000000000000005 | 0001 6d | 00000000000003e8 | 00000000000007d0",
    ),
    (
        groups.OffsetCommitValue(5, 7, "m", 1000),
        3,
        "0000000000000005 | 00000007 | 0001 6d | 00000000000003e8",
    ),
    (
        groups.OffsetCommitValue(5, 7, "m", 1000),
        4,
        "0000000000000005 | 00000007 | 02 6d | 00000000000003e8 | 00",
    ),
    (groups.GroupMetadataKey("grp"), 2, "0003 677270"),
    (
        groups.GroupMetadataValue("consumer", 2, None, None, 99, []),
        3,
        "0008 636f6e73756d6572 | 00000002 | ffff | ffff | 0000000000000063 | 00000000",
    ),
    (
        groups.GroupMetadataValue(
            "c", 2, "r", "m", 99, [groups.MemberMetadata("m", "i", "k", "h", 3, 4, b"s", b"a")]
        ),
        3,
        "0001 63 | 00000002 | 0001 72 | 0001 6d | 0000000000000063 | 00000001"
        "| 0001 6d | 0001 69 | 0001 6b | 0001 68 | 00000003 | 00000004"
        "| 00000001 73 | 00000001 61",
    ),
    (metadata.TopicRecord("foo", ID), 0, f"04 666f6f | {ID_HEX} | 00"),
    (
        metadata.PartitionRecord(1, ID, [1], [1], [], [], 1, 0, 4, 5, [ID]),
        1,
        f"00000001 | {ID_HEX} | 02 00000001 | 02 00000001 | 01 | 01 | 00000001"
        f"| 00000004 | 00000005 | 02 {ID_HEX} | 00",
    ),
    (
        metadata.PartitionRecord(1, ID, [], [], [], [], 1, 1, 4, 5, [], [2], []),
        2,
        f"00000001 | {ID_HEX} | 01 | 01 | 01 | 01 | 00000001 | 00000004 | 00000005 | 01"
        "| 03 | 00 01 01 | 01 05 02 00000002 | 02 01 01",
    ),
    (
        metadata.PartitionChangeRecord(1, ID, leader=3, directories=[ID]),
        1,
        f"00000001 | {ID_HEX} | 02 | 01 04 00000003 | 08 11 02 {ID_HEX}",
    ),
    (metadata.ConfigRecord(2, "t", "k", None), 0, "02 | 02 74 | 02 6b | 00 | 00"),
    (metadata.RemoveTopicRecord(ID), 0, f"{ID_HEX} | 00"),
    (metadata.FeatureLevelRecord("f", 3), 0, "02 66 | 0003 | 00"),
    (
        metadata.ProducerIdsRecord(1, 2, 1000),
        0,
        "00000001 | 0000000000000002 | 00000000000003e8 | 00",
    ),
    (
        metadata.RegisterBrokerRecord(
            1, False, ID, 9, [metadata.BrokerEndpoint("P", "h", 40000, 0)], [], None, True, False
        ),
        3,
        f"00000001 | 00 | {ID_HEX} | 0000000000000009 | 02 | 02 50 | 02 68 | 9c40 | 0000 | 00"
        "| 01 | 00 | 01 | 00 | 00",
    ),
    (
        metadata.BrokerRegistrationChangeRecord(1, 9, -1),
        2,
        "00000001 | 0000000000000009 | 01 | 00 01 ff",
    ),
    (metadata.NoOpRecord(), 0, "00"),
    (
        produce.ProduceRequest(
            acks=1,
            timeout_ms=10,
            topic_data=[produce.TopicProduceData("t", [produce.PartitionProduceData(2, b"xy")])],
        ),
        0,
        "0001 | 0000000a | 00000001 | 0001 74 | 00000001 | 00000002 | 00000002 7879",
    ),
    (
        produce.ProduceResponse(
            responses=[
                produce.TopicProduceResponse("t", [produce.PartitionProduceResponse(2, 35, -1)])
            ]
        ),
        2,
        "00000001 | 0001 74 | 00000001 | 00000002 | 0023 | ffffffffffffffff | ffffffffffffffff"
        "| 00000000",
    ),
]


@pytest.mark.parametrize(("message", "version", "data"), VECTORS)
def test_bytes_are_those_of_the_book(message, version, data):
    expected = bytes.fromhex(data.replace("|", ""))
    assert encode(message, version) == expected
    assert encode(decode(type(message), expected, version), version) == expected
