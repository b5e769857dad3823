"""What the codec does with what no healthy peer sends, and with what is written by hand."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.wire.codec import (
    EncodedMessage,
    MalformedMessage,
    NotEncodable,
    decode,
    decode_prefix,
    encode,
    encode_chunks,
    read_uvarint,
    write_uvarint,
)
from ottla.wire.generator import RECORDS_CHUNK_BYTES_MIN
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from ottla.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.schema import (
    BYTES,
    FLOAT64,
    INT8,
    INT32,
    STRING,
    UINT32,
    UUID,
    Array,
    Message,
    Struct,
    field,
)


class Part(Struct):
    number: int = field(INT32)
    late: str | None = field(STRING, "2+", nullable="2+", default=None)


class Sample(Message, versions="0-3", flexible="1+"):
    name: str = field(STRING, default="nobody")
    ids: list[bytes] = field(Array(UUID))
    floats: list[float] = field(Array(FLOAT64), "2+")
    part: Part = field(Part, "1+", tag=3, tagged="1+")
    maybe: Part | None = field(Part, nullable="0+", default=None)
    unsigned: int = field(UINT32, "1+", default=7, tag=0, tagged="1+")
    texts: list[str] | None = field(
        Array(STRING), "1+", nullable="1+", default=None, tag=1, tagged="1+"
    )
    raw: bytes | None = field(BYTES, nullable="2+", default=b"")


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", ""))


def test_an_old_join_is_read_as_it_stands_in_the_book():
    data = hexed("0001 67 | 00002710 | 0002 6d31 | 0008 636f6e73756d6572 | 00000001")
    data += hexed("0005 72616e6765 | 00000003 010203")
    request = decode(JoinGroupRequest, data, 0)
    assert request == JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=-1,
        member_id="m1",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\x01\x02\x03")],
    )
    assert encode(request, 0) == data
    request.rebalance_timeout_ms = 300_000
    assert encode(request, 1) == data[:7] + hexed("000493e0") + data[7:]


def test_an_old_join_is_answered_as_it_stands_in_the_book():
    response = JoinGroupResponse(
        throttle_time_ms=5,
        error_code=25,
        generation_id=2,
        protocol_name="r",
        leader="l",
        member_id="m",
        members=[JoinGroupResponseMember(member_id="m", metadata=b"\xff")],
    )
    data = hexed("0019 | 00000002 | 0001 72 | 0001 6c | 0001 6d | 00000001 0001 6d 00000001 ff")
    assert encode(response, 0) == data
    assert encode(response, 1) == data
    assert encode(response, 2) == hexed("00000005") + data
    response.throttle_time_ms = 0
    assert decode(JoinGroupResponse, data, 0) == response


def test_what_a_version_lacks_keeps_its_default():
    sample = Sample(name="a", floats=[1.5], unsigned=9, texts=["x"], maybe=Part(5, "late"))
    assert decode(Sample, encode(sample, 0), 0) == Sample(name="a", maybe=Part(5))
    assert decode(Sample, encode(sample, 2), 2) == sample


def test_defaults_are_not_shared():
    data = encode(Sample(), 0)
    one, other = decode(Sample, data, 0), decode(Sample, data, 0)
    one.floats.append(1.0)
    one.part.number = 1
    assert other == Sample()
    built, another = Sample(), Sample()
    built.floats.append(1.0)
    built.part.number = 2
    assert another.floats == []
    assert another.part == Part()


def test_tagged_fields_are_left_out_while_they_are_at_their_defaults():
    assert encode(Sample(), 1) == hexed("07 6e6f626f6479 | 01 | ff | 01 | 00")
    tagged = Sample(unsigned=8, texts=[], part=Part(1))
    assert encode(tagged, 1) == hexed(
        "07 6e6f626f6479 | 01 | ff | 01 | 03 | 00 04 00000008 | 01 01 01 | 03 05 00000001 00"
    )


def test_unknown_tagged_fields_are_skipped():
    plain = encode(ApiVersionsRequest("c", "1"), 3)
    with_tags = plain[:-1] + hexed("02 | 05 03 aabbcc | ff07 00")
    assert decode(ApiVersionsRequest, with_tags, 3) == ApiVersionsRequest("c", "1")
    known_and_unknown = encode(ApiVersionsResponse(finalized_features_epoch=4), 3)
    assert known_and_unknown.endswith(hexed("01 | 01 08 0000000000000004"))
    data = known_and_unknown[:-11] + hexed("02 | 01 08 0000000000000004 | 09 01 ee")
    assert decode(ApiVersionsResponse, data, 3).finalized_features_epoch == 4


@pytest.mark.parametrize("size", ["07", "09"])
def test_a_tagged_field_that_lies_about_its_size_is_refused(size):
    data = encode(ApiVersionsResponse(), 3)[:-1]
    data += hexed(f"01 | 01 {size} 0000000000000004 00")
    with pytest.raises(MalformedMessage):
        decode_prefix(ApiVersionsResponse, data, 3)


def test_more_tags_than_bytes_are_refused():
    data = encode(ApiVersionsRequest("c", "1"), 3)[:-1] + hexed("ffffffff0f")
    with pytest.raises(MalformedMessage):
        decode(ApiVersionsRequest, data, 3)


def test_a_cursor_may_be_null_or_not():
    without = DescribeTopicPartitionsRequest()
    assert encode(without, 0) == hexed("01 | 000007d0 | ff | 00")
    assert decode(DescribeTopicPartitionsRequest, encode(without, 0), 0) == without
    with_cursor = DescribeTopicPartitionsRequest(cursor=Cursor("t", 3))
    assert encode(with_cursor, 0) == hexed("01 | 000007d0 | 01 0274 00000003 00 | 00")
    assert decode(DescribeTopicPartitionsRequest, encode(with_cursor, 0), 0) == with_cursor


@pytest.mark.parametrize(
    ("kind", "version", "data"),
    [
        (HeartbeatRequest, 0, "ffff 00000001 0001 6d"),
        (HeartbeatRequest, 4, "00 00000001 026d 00 00"),
        (MetadataRequest, 0, "ffffffff"),
        (ProduceRequest, 9, "00 0001 00000001 00 00"),
    ],
)
def test_null_where_it_may_not_be_is_refused(kind, version, data):
    with pytest.raises(MalformedMessage, match="null"):
        decode(kind, hexed(data), version)


@pytest.mark.parametrize("version", [3, 12])
def test_null_is_not_written_where_it_may_not_be(version):
    request = ProduceRequest(topic_data=[TopicProduceData(name=None)])
    with pytest.raises(NotEncodable, match="name"):
        encode(request, version)


@pytest.mark.parametrize(
    "sample",
    [
        Sample(name="\ud800"),
        Sample(maybe=Part(2**31)),
        Sample(maybe=Part("one")),
        Sample(ids=[b"short"]),
        Sample(name="x" * 40_000),
        Sample(raw=None),
        Sample(ids=7),
    ],
    ids=lambda sample: repr(sample)[:40],
)
def test_what_a_field_cannot_carry_is_not_encodable(sample):
    with pytest.raises(NotEncodable):
        encode(sample, 0)


@pytest.mark.parametrize("version", [-1, 4])
def test_versions_that_do_not_exist_are_refused(version):
    with pytest.raises(NotEncodable, match="no version"):
        encode(Sample(), version)
    with pytest.raises(MalformedMessage, match="no version"):
        decode(Sample, b"", version)


def test_bytes_after_a_message_are_refused_or_left_to_the_caller():
    data = encode(HeartbeatRequest("g", 1, "m"), 0)
    with pytest.raises(MalformedMessage, match="too many"):
        decode(HeartbeatRequest, data + b"x", 0)
    message, stop = decode_prefix(HeartbeatRequest, b"__" + data + b"x", 0, 2)
    assert message == HeartbeatRequest("g", 1, "m")
    assert stop == len(data) + 2


def test_a_message_that_is_cut_off_is_refused_even_when_more_may_follow():
    data = encode(HeartbeatRequest("g", 1, "member"), 0)
    with pytest.raises(MalformedMessage, match="missing"):
        decode_prefix(HeartbeatRequest, data[:-1], 0)


def test_a_string_that_is_not_utf_8_is_refused():
    with pytest.raises(MalformedMessage):
        decode(HeartbeatRequest, hexed("0001 ff 00000001 0001 6d"), 0)


def test_records_are_views_into_the_frame():
    data = bytearray(
        encode(
            ProduceRequest(topic_data=[TopicProduceData("t", [PartitionProduceData(0, b"abc")])]),
            9,
        )
    )
    request = decode(ProduceRequest, data, 9)
    records = request.topic_data[0].partition_data[0].records
    data[data.index(b"abc")] = ord("X")
    assert records == b"Xbc"


@pytest.mark.parametrize("size", [RECORDS_CHUNK_BYTES_MIN - 1, RECORDS_CHUNK_BYTES_MIN])
def test_large_records_become_chunks_and_are_not_copied(size):
    records = memoryview(bytes(size))
    partitions = [PartitionData(0, records=records), PartitionData(1, records=records)]
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])
    out = bytearray(b"head")
    chunks = encode_chunks(response, 11, out)
    assert chunks[0] is out
    assert sum(chunk is records for chunk in chunks) == (2 if size == 4096 else 0)
    whole = b"".join(chunks)
    assert whole == b"head" + encode(response, 11)
    assert decode(FetchResponse, whole[4:], 11) == response


def test_an_answer_that_is_encoded_already_is_passed_on_as_it_is():
    body = encode(HeartbeatRequest("g", 1, "m"), 0)
    out = bytearray(b"head")
    chunks = encode_chunks(EncodedMessage(body), 7, out)
    assert chunks[0] is out
    assert chunks[1] is body
    assert b"".join(chunks) == b"head" + body


@pytest.mark.parametrize("version", [8, 12])
@pytest.mark.parametrize("count", [126, 127, 128, 20_000])
def test_long_lists_survive(version, count):
    request = MetadataRequest(topics=[MetadataRequestTopic(name=str(n)) for n in range(count)])
    assert decode(MetadataRequest, encode(request, version), version) == request


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_lists_of_ids_and_numbers_survive(version):
    ids = [bytes([n]) * 16 for n in range(200)]
    sample = Sample(ids=ids, floats=[n / 7 for n in range(200)] if version > 1 else [])
    assert decode(Sample, encode(sample, version), version) == sample


@given(st.integers(0, 2**35 - 1))
def test_variable_length_integers_survive(value):
    out = bytearray()
    write_uvarint(out, value)
    assert read_uvarint(memoryview(out), 0) == (value, len(out))


def test_a_variable_length_integer_has_five_bytes_at_most():
    with pytest.raises(MalformedMessage):
        read_uvarint(memoryview(b"\x80" * 5 + b"\x01"), 0)


def test_parts_of_one_name_are_refused_when_they_differ():
    first = type(Struct)("Twin", (Struct,), {"a": field(INT8)})
    second = type(Struct)("Twin", (Struct,), {"b": field(INT8)})
    namespace = {"one": field(Array(first)), "other": field(Array(second))}
    both = type(Message)("Both", (Message,), namespace, versions="0", flexible="none")
    with pytest.raises(TypeError, match="Twin"):
        decode(both, bytes(8), 0)


@pytest.mark.parametrize(
    "data",
    [
        hexed("01 | ffffff01 | 0000"),  # four million ids
        hexed("01 | 01 | ff | 01 | 01 | 01 08 ffffff01 0000"),  # as many texts, in a tag
        hexed("01 | 01 | ff | ffffff01 0000"),  # as many bytes
        hexed("ffffff01 | 0000"),  # as long a name
    ],
)
def test_a_small_frame_cannot_ask_for_much_memory(data):
    with pytest.raises(MalformedMessage):
        decode(Sample, data, 1)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            decode(Sample, data, 1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000
