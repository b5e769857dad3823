"""Heads of requests and frames of replies."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.schema.response_header.v0.header import ResponseHeader as ResponseHeaderV0
from kio.schema.response_header.v1.header import ResponseHeader as ResponseHeaderV1
from kio.serial import entity_reader, entity_writer

from ottla.wire.codec import MalformedMessage, decode
from ottla.wire.framing import RequestHead, frame_reply, frame_request, read_head, read_reply_head
from ottla.wire.messages.api_versions import ApiVersionsResponse
from ottla.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)


def head_bytes(kind, api_key, version, correlation_id, client_id):
    out = io.BytesIO()
    header = kind(
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    entity_writer(kind)(out, header)
    return out.getvalue()


@given(int16, int16, int32, st.none() | st.text(max_size=10), st.booleans())
def test_heads_are_read_as_kio_writes_them(api_key, version, correlation_id, client_id, flexible):
    kind = RequestHeaderV2 if flexible else RequestHeaderV1
    head = head_bytes(kind, api_key, version, correlation_id, client_id)
    asked = []

    def is_flexible(key, number):
        asked.append((key, number))
        return flexible

    found = read_head(memoryview(head + b"body"), is_flexible)
    assert found == RequestHead(api_key, version, correlation_id, client_id, len(head))
    assert asked == [(api_key, version)]


def test_tagged_fields_of_a_head_are_skipped():
    head = head_bytes(RequestHeaderV2, 3, 9, 1, "c")[:-1]
    frame = head + b"\x02\x00\x03abc\x63\x00" + b"body"
    assert read_head(memoryview(frame), lambda *_: True).body_at == len(frame) - 4


def test_a_client_id_of_minus_two_bytes_is_malformed():
    with pytest.raises(MalformedMessage):
        read_head(memoryview(b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xfe"), lambda *_: False)


@given(st.binary(max_size=40), st.booleans())
@example(b"\x00\x03\x00\x09\x00\x00\x00\x01\x00\x09abc", False)
@example(b"\x00\x03\x00\x09\x00\x00\x00\x01\x00\x01\xff", False)
@example(b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\x0f", True)
@example(b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff\x01\x00\x7f", True)
def test_garbage_is_a_malformed_head_or_a_head_within_its_frame(data, flexible):
    try:
        head = read_head(memoryview(data), lambda *_: flexible)
    except MalformedMessage:
        return
    assert 10 <= head.body_at <= len(data)


@given(st.data())
def test_a_head_that_is_cut_off_is_malformed(data):
    head = head_bytes(RequestHeaderV2, 3, 9, 1, "client")
    stop = data.draw(st.integers(0, len(head) - 1))
    with pytest.raises(MalformedMessage):
        read_head(memoryview(head)[:stop], lambda *_: True)


@pytest.mark.parametrize(
    ("flexible", "kind", "version"), [(False, ResponseHeaderV0, 3), (True, ResponseHeaderV1, 4)]
)
def test_replies_are_framed_as_kio_reads_them(flexible, kind, version):
    response = HeartbeatResponse(throttle_time_ms=3, error_code=27)
    whole = b"".join(frame_reply(77, flexible, response, version))
    assert struct.unpack_from(">i", whole) == (len(whole) - 4,)
    header, size = entity_reader(kind)(whole, 4)
    assert header.correlation_id == 77
    assert decode(HeartbeatResponse, whole, version, 4 + size) == response


def test_the_reply_to_api_versions_never_has_the_flexible_header():
    response = ApiVersionsResponse(error_code=35)
    whole = b"".join(frame_reply(1, True, response, 3))
    assert decode(ApiVersionsResponse, whole, 3, 8) == response


def test_the_size_counts_all_chunks_of_a_reply():
    records = bytes(100_000)
    response = FetchResponse(
        responses=[FetchableTopicResponse("t", partitions=[PartitionData(0, records=records)])]
    )
    chunks = frame_reply(1, False, response, 11)
    assert any(chunk is records for chunk in chunks)
    whole = b"".join(chunks)
    assert struct.unpack_from(">ii", whole) == (len(whole) - 4, 1)
    assert decode(FetchResponse, whole, 11, 8) == response


@pytest.mark.parametrize(("kind", "version"), [(RequestHeaderV1, 3), (RequestHeaderV2, 4)])
@given(int32, st.text(max_size=10))
def test_requests_are_framed_as_kio_reads_them(kind, version, correlation_id, client_id):
    request = HeartbeatRequest(group_id="g", generation_id=5, member_id="m")
    whole = b"".join(frame_request(correlation_id, client_id, request, version))
    assert struct.unpack_from(">i", whole) == (len(whole) - 4,)
    header, size = entity_reader(kind)(whole, 4)
    assert header.request_api_key == HeartbeatRequest.API_KEY
    assert header.request_api_version == version
    assert (header.correlation_id, header.client_id) == (correlation_id, client_id)
    assert decode(HeartbeatRequest, whole, version, 4 + size) == request


@pytest.mark.parametrize("version", [8, 9])
def test_what_a_client_frames_a_broker_reads(version):
    records = bytes(100_000)
    data = PartitionProduceData(index=3, records=records)
    request = ProduceRequest(acks=-1, topic_data=[TopicProduceData("t", [data])])
    chunks = frame_request(9, "me", request, version)
    assert any(chunk is records for chunk in chunks)
    whole = b"".join(chunks)
    assert struct.unpack_from(">i", whole) == (len(whole) - 4,)
    head = read_head(memoryview(whole)[4:], lambda _, number: number in ProduceRequest.FLEXIBLE)
    assert head[:4] == (ProduceRequest.API_KEY, version, 9, "me")
    assert decode(ProduceRequest, whole, version, 4 + head.body_at) == request


@pytest.mark.parametrize(
    ("response", "version", "is_flexible"),
    [
        (HeartbeatResponse(error_code=27), 3, False),
        (HeartbeatResponse(error_code=27), 4, True),
        (ApiVersionsResponse(error_code=35), 3, True),
    ],
)
def test_a_client_finds_the_body_of_what_a_broker_frames(response, version, is_flexible):
    whole = b"".join(frame_reply(-5, is_flexible, response, version))
    frame = memoryview(whole)[4:]
    correlation_id, pos = read_reply_head(frame, type(response), version)
    assert correlation_id == -5
    assert decode(type(response), frame, version, pos) == response


def test_tagged_fields_of_a_reply_are_skipped():
    frame = memoryview(b"\x00\x00\x00\x07" + b"\x01\x63\x02ab" + b"body")
    assert read_reply_head(frame, HeartbeatResponse, 4) == (7, len(frame) - 4)


@given(st.binary(max_size=12), st.sampled_from([3, 4]))
@example(b"\x00\x00\x00\x07\x01\x63\x02a", 4)
def test_garbage_is_a_malformed_reply_or_a_body_within_its_frame(data, version):
    try:
        _, pos = read_reply_head(memoryview(data), HeartbeatResponse, version)
    except MalformedMessage:
        return
    assert 4 <= pos <= len(data)
