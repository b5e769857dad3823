"""Which produce requests have the shape that is read without messages."""

from __future__ import annotations

import struct

import pytest

from ottla.wire.codec import encode
from ottla.wire.framing import frame_reply
from ottla.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.wire.one_batch import FIRST_VERSION, LAST_VERSION, read_shape, records_in

VERSIONS = range(FIRST_VERSION, LAST_VERSION + 1)
FLEXIBLE_VERSION = 9
OFFSET = 0x0102_0304_0506_0708


def a_frame(
    version: int,
    topics: list[TopicProduceData],
    *,
    transactional_id: str | None = None,
    api_key: int = 0,
    tags: bytes = b"\0",
    client_id: bytes = b"c",
) -> bytearray:
    request = ProduceRequest(transactional_id, -1, 1500, topics)
    head = struct.pack(">hhih", api_key, version, 77, len(client_id)) + client_id
    return bytearray(
        head + (tags if version >= FLEXIBLE_VERSION else b"") + encode(request, version)
    )


def one(records: bytes | None, topic: str = "t", index: int = 5) -> list[TopicProduceData]:
    return [TopicProduceData(topic, [PartitionProduceData(index, records)])]


@pytest.mark.parametrize("size", [1, 61, 126, 127, 128, 16_383, 16_384, 2_097_153])
@pytest.mark.parametrize("version", VERSIONS)
def test_one_batch_is_read_where_it_lies(version: int, size: int) -> None:
    records = bytes(at & 0xFF for at in range(size))
    frame = a_frame(version, one(records, "t" * 200))
    shape = read_shape(frame)
    assert shape is not None
    assert (shape.version, shape.acks, shape.timeout_ms) == (version, -1, 1500)
    assert (shape.topic, shape.index) == ("t" * 200, 5)
    found = records_in(frame, shape)
    assert found == records
    assert found is not None
    assert found.obj is frame


@pytest.mark.parametrize("topic", ["t", "t" * 126, "t" * 127, "t" * 249, "täglich"])
@pytest.mark.parametrize("version", VERSIONS)
def test_its_reply_is_what_the_general_writer_writes(version: int, topic: str) -> None:
    shape = read_shape(a_frame(version, one(b"r", topic, index=-2)))
    assert shape is not None
    answer = PartitionProduceResponse(
        -2, base_offset=OFFSET, log_append_time_ms=OFFSET + 1, log_start_offset=-OFFSET
    )
    response = ProduceResponse([TopicProduceResponse(topic, [answer])])
    expected = b"".join(frame_reply(-9, version >= FLEXIBLE_VERSION, response, version))
    place = (OFFSET, OFFSET + 1, -OFFSET)
    assert shape.pack(shape.size, -9, shape.before, *place, shape.after) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_every_other_shape_is_left_to_the_general_reader(version: int) -> None:
    assert read_shape(a_frame(version, one(b"r") * 2)) is None
    assert read_shape(a_frame(version, [])) is None
    two = [PartitionProduceData(0, b"a"), PartitionProduceData(1, b"b")]
    assert read_shape(a_frame(version, [TopicProduceData("t", two)])) is None
    assert read_shape(a_frame(version, one(b"r"), transactional_id="")) is None
    assert read_shape(a_frame(version, one(b"r"), transactional_id="t")) is None
    assert read_shape(a_frame(version, one(b"r"), api_key=1)) is None
    assert read_shape(a_frame(version, one(b"r"), client_id=b"\xff")) is None
    assert read_shape(a_frame(version, [TopicProduceData("t", [])])) is None
    if version >= FLEXIBLE_VERSION:
        assert read_shape(a_frame(version, one(b"r"), tags=b"\1\0\0")) is None


def test_a_tag_that_looks_like_a_request_is_not_taken_for_one() -> None:
    like_one = b"\0\0\1" + b"\2" + b"\2t" + b"\2" + bytes(4)
    size = 0x3FFF
    tags = b"\1\0" + b"\xff\xff\0" + like_one + bytes(size - len(like_one))
    assert read_shape(a_frame(LAST_VERSION, one(b"r"), tags=tags)) is None


@pytest.mark.parametrize("version", [FIRST_VERSION - 1, LAST_VERSION + 1])
def test_so_is_every_other_version(version: int) -> None:
    frame = a_frame(LAST_VERSION, one(b"r"))
    struct.pack_into(">h", frame, 2, version)
    assert read_shape(frame) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_must_end_with_its_frame(version: int) -> None:
    frame = a_frame(version, one(b"records"))
    shape = read_shape(frame)
    assert shape is not None
    for size in range(len(frame)):
        cut = frame[:size]
        cut_shape = read_shape(cut)
        assert cut_shape is None or records_in(cut, cut_shape) is None
        assert records_in(cut, shape) is None
    assert records_in(frame + b"\0", shape) is None
    without = a_frame(version, one(None))
    assert records_in(without, read_shape(without) or shape) is None
    if version >= FLEXIBLE_VERSION:
        for at in (-3, -2, -1):
            tagged = bytearray(frame)
            tagged[at] = 1
            assert records_in(tagged, shape) is None
