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
from ottla.wire.messages import transaction_records as transactions
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


COMMIT = groups.OffsetCommitValue(5, 7, "m", 1000, 2000)
MEMBER = groups.MemberMetadata("m", "i", "k", "h", 3, 4, b"s", b"a")
GROUP = groups.GroupMetadataValue("c", 2, "r", "l", 99, [MEMBER])
PARTITION = metadata.PartitionRecord(1, ID, [1], [2], [], [], 1, 1, 4, 5, [ID], [2], [])
CHANGE = metadata.PartitionChangeRecord(
    1, ID, isr=[1], leader=3, directories=[ID], eligible_leader_replicas=[], last_known_elr=[2]
)
BROKER = metadata.RegisterBrokerRecord(
    broker_id=1,
    is_migrating_zk_broker=True,
    incarnation_id=ID,
    broker_epoch=9,
    end_points=[metadata.BrokerEndpoint("P", "h", 40000, 2)],
    features=[metadata.BrokerFeature("f", 1, 3)],
    rack=None,
    fenced=True,
    in_controlled_shutdown=True,
    log_dirs=[ID],
)
BROKER_CHANGE = metadata.BrokerRegistrationChangeRecord(1, 9, -1, 1, [ID])
CONTROLLER = metadata.RegisterControllerRecord(
    controller_id=3,
    incarnation_id=ID,
    end_points=[metadata.ControllerEndpoint("C", "h", 40000, 2)],
    features=[metadata.ControllerFeature("f", 1, 3)],
)
PRODUCE = produce.ProduceRequest(
    transactional_id="not there yet",
    acks=1,
    timeout_ms=10,
    topic_data=[produce.TopicProduceData("t", [produce.PartitionProduceData(2, b"xy")])],
)
PRODUCED = produce.ProduceResponse(
    responses=[produce.TopicProduceResponse("t", [produce.PartitionProduceResponse(2, 35, -1, 6)])],
    throttle_time_ms=3,
)

TRANSACTION = transactions.TransactionLogValue(
    5, 6, -1, 7, 1000, 1, [transactions.PartitionsSchema("t", [2])], 8, 9, 2
)
TRANSACTION_HEX = "0000000000000005 | 0007 | 000003e8 | 01"

VECTORS = [
    (transactions.TransactionLogKey("t"), 0, "0001 74"),
    (
        TRANSACTION,
        0,
        f"{TRANSACTION_HEX} | 00000001 0001 74 00000001 00000002"
        "| 0000000000000008 | 0000000000000009",
    ),
    (
        TRANSACTION,
        1,
        f"{TRANSACTION_HEX} | 02 02 74 02 00000002 00 | 0000000000000008 | 0000000000000009"
        "| 02 | 00 08 0000000000000006 | 02 02 0002",
    ),
    (groups.OffsetCommitKey("g", "t", 3), 0, "0001 67 | 0001 74 | 00000003"),
    (groups.OffsetCommitKey("g", "t", 3), 1, "0001 67 | 0001 74 | 00000003"),
    (COMMIT, 0, "0000000000000005 | 0001 6d | 00000000000003e8"),
    (COMMIT, 1, "0000000000000005 | 0001 6d | 00000000000003e8 | 00000000000007d0"),
    (COMMIT, 2, "0000000000000005 | 0001 6d | 00000000000003e8"),
    (COMMIT, 3, "0000000000000005 | 00000007 | 0001 6d | 00000000000003e8"),
    (COMMIT, 4, "0000000000000005 | 00000007 | 02 6d | 00000000000003e8 | 00"),
    (groups.GroupMetadataKey("grp"), 2, "0003 677270"),
    (
        GROUP,
        0,
        "0001 63 | 00000002 | 0001 72 | 0001 6c | 00000001"
        "| 0001 6d | 0001 6b | 0001 68 | 00000004 | 00000001 73 | 00000001 61",
    ),
    (
        GROUP,
        1,
        "0001 63 | 00000002 | 0001 72 | 0001 6c | 00000001"
        "| 0001 6d | 0001 6b | 0001 68 | 00000003 | 00000004 | 00000001 73 | 00000001 61",
    ),
    (
        GROUP,
        2,
        "0001 63 | 00000002 | 0001 72 | 0001 6c | 0000000000000063 | 00000001"
        "| 0001 6d | 0001 6b | 0001 68 | 00000003 | 00000004 | 00000001 73 | 00000001 61",
    ),
    (
        GROUP,
        3,
        "0001 63 | 00000002 | 0001 72 | 0001 6c | 0000000000000063 | 00000001"
        "| 0001 6d | 0001 69 | 0001 6b | 0001 68 | 00000003 | 00000004"
        "| 00000001 73 | 00000001 61",
    ),
    (
        GROUP,
        4,
        "02 63 | 00000002 | 02 72 | 02 6c | 0000000000000063 | 02"
        "| 02 6d | 02 69 | 02 6b | 02 68 | 00000003 | 00000004 | 02 73 | 02 61 | 00 | 00",
    ),
    (
        groups.GroupMetadataValue("c", 2, None, None, 99, []),
        3,
        "0001 63 | 00000002 | ffff | ffff | 0000000000000063 | 00000000",
    ),
    (metadata.TopicRecord("foo", ID), 0, f"04 666f6f | {ID_HEX} | 00"),
    (
        PARTITION,
        0,
        f"00000001 | {ID_HEX} | 02 00000001 | 02 00000002 | 01 | 01 | 00000001"
        "| 00000004 | 00000005 | 01 | 00 01 01",
    ),
    (
        PARTITION,
        1,
        f"00000001 | {ID_HEX} | 02 00000001 | 02 00000002 | 01 | 01 | 00000001"
        f"| 00000004 | 00000005 | 02 {ID_HEX} | 01 | 00 01 01",
    ),
    (
        PARTITION,
        2,
        f"00000001 | {ID_HEX} | 02 00000001 | 02 00000002 | 01 | 01 | 00000001"
        f"| 00000004 | 00000005 | 02 {ID_HEX} | 03 | 00 01 01 | 01 05 02 00000002 | 02 01 01",
    ),
    (CHANGE, 0, f"00000001 | {ID_HEX} | 02 | 00 05 02 00000001 | 01 04 00000003"),
    (
        CHANGE,
        1,
        f"00000001 | {ID_HEX} | 03 | 00 05 02 00000001 | 01 04 00000003 | 08 11 02 {ID_HEX}",
    ),
    (
        CHANGE,
        2,
        f"00000001 | {ID_HEX} | 05 | 00 05 02 00000001 | 01 04 00000003"
        f"| 06 01 01 | 07 05 02 00000002 | 08 11 02 {ID_HEX}",
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
        BROKER,
        0,
        f"00000001 | {ID_HEX} | 0000000000000009 | 02 | 02 50 | 02 68 | 9c40 | 0002 | 00"
        "| 02 | 02 66 | 0001 | 0003 | 00 | 00 | 01 | 00",
    ),
    (
        BROKER,
        1,
        f"00000001 | {ID_HEX} | 0000000000000009 | 02 | 02 50 | 02 68 | 9c40 | 0002 | 00"
        "| 02 | 02 66 | 0001 | 0003 | 00 | 00 | 01 | 01 | 00",
    ),
    (
        BROKER,
        2,
        f"00000001 | 01 | {ID_HEX} | 0000000000000009 | 02 | 02 50 | 02 68 | 9c40 | 0002 | 00"
        "| 02 | 02 66 | 0001 | 0003 | 00 | 00 | 01 | 01 | 00",
    ),
    (
        BROKER,
        3,
        f"00000001 | 01 | {ID_HEX} | 0000000000000009 | 02 | 02 50 | 02 68 | 9c40 | 0002 | 00"
        f"| 02 | 02 66 | 0001 | 0003 | 00 | 00 | 01 | 01 | 01 | 00 11 02 {ID_HEX}",
    ),
    (BROKER_CHANGE, 0, "00000001 | 0000000000000009 | 01 | 00 01 ff"),
    (BROKER_CHANGE, 1, "00000001 | 0000000000000009 | 02 | 00 01 ff | 01 01 01"),
    (
        BROKER_CHANGE,
        2,
        f"00000001 | 0000000000000009 | 03 | 00 01 ff | 01 01 01 | 02 11 02 {ID_HEX}",
    ),
    (metadata.UnregisterBrokerRecord(1, 9), 0, "00000001 | 0000000000000009 | 00"),
    (metadata.FenceBrokerRecord(1, 9), 0, "00000001 | 0000000000000009 | 00"),
    (metadata.UnfenceBrokerRecord(1, 9), 0, "00000001 | 0000000000000009 | 00"),
    (
        CONTROLLER,
        0,
        f"00000003 | {ID_HEX} | 00 | 02 | 02 43 | 02 68 | 9c40 | 0002 | 00"
        "| 02 | 02 66 | 0001 | 0003 | 00 | 00",
    ),
    (metadata.NoOpRecord(), 0, "00"),
    *(
        (
            PRODUCE,
            version,
            "0001 | 0000000a | 00000001 | 0001 74 | 00000001 | 00000002 | 00000002 7879",
        )
        for version in (0, 1, 2)
    ),
    (PRODUCED, 0, "00000001 | 0001 74 | 00000001 | 00000002 | 0023 | ffffffffffffffff"),
    (PRODUCED, 1, "00000001 | 0001 74 | 00000001 | 00000002 | 0023 | ffffffffffffffff | 00000003"),
    (
        PRODUCED,
        2,
        "00000001 | 0001 74 | 00000001 | 00000002 | 0023 | ffffffffffffffff | 0000000000000006"
        "| 00000003",
    ),
]


def test_each_version_that_kio_lacks_has_bytes_to_be_compared_with():
    compared = {(type(message), version) for message, version, _ in VECTORS}
    assert compared == {pair for pair in all_versions() if not is_in_kio(*pair)}


@pytest.mark.parametrize(
    ("message", "version", "data"),
    VECTORS,
    ids=[
        f"{type(message).__name__}-v{version}-{n}"
        for n, (message, version, _) in enumerate(VECTORS)
    ],
)
def test_bytes_are_those_of_the_book(message, version, data):
    expected = bytes.fromhex(data.replace("|", ""))
    assert encode(message, version) == expected
    assert encode(decode(type(message), expected, version), version) == expected
