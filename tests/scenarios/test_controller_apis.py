"""What nodes ask the controller, and what they send it for clients, over the wire."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.wire.codec import decode
from ottla.wire.framing import frame_request, read_reply_head
from ottla.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.messages.envelope import EnvelopeRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from raw_client import RawClient
from scenarios.in_process import BrokerInside

FRAME_SIZE_BYTES = 4


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        yield client


def forwarded(client: RawClient, request: Any, version: int) -> Any:
    frame = b"".join(frame_request(7, "the-client", request, version))[FRAME_SIZE_BYTES:]
    envelope = EnvelopeRequest(frame, None, socket.inet_aton("192.0.2.7"))
    return client.ask(envelope, 0)


def creation(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic])


def test_another_incarnation_of_a_broker_is_refused(client: RawClient) -> None:
    beat = client.ask(BrokerHeartbeatRequest(broker_id=1, broker_epoch=999), 1)
    block = client.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=999), 0)
    stranger = client.ask(BrokerHeartbeatRequest(broker_id=8, broker_epoch=1), 1)
    codes = {beat.error_code, block.error_code, stranger.error_code}
    assert codes == {ErrorCode.STALE_BROKER_EPOCH}


def test_a_broker_that_nobody_knows_cannot_be_forgotten(client: RawClient) -> None:
    reply = client.ask(UnregisterBrokerRequest(broker_id=8), 0)
    assert reply.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert reply.error_message == "Broker 8 is not registered."


def test_a_level_that_nobody_knows_is_refused(client: RawClient) -> None:
    wanted = FeatureUpdateKey(feature="metadata.version", max_version_level=99)
    for version in (0, 1, 2):
        reply = client.ask(UpdateFeaturesRequest(feature_updates=[wanted]), version)
        assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_a_request_in_an_envelope_is_answered_as_if_its_client_had_sent_it(
    client: RawClient,
) -> None:
    for expected in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        reply = forwarded(client, creation("made"), 7)
        assert reply.error_code == ErrorCode.NONE
        frame = memoryview(reply.response_data)
        correlation_id, body_at = read_reply_head(frame, CreateTopicsResponse, 7)
        (topic,) = decode(CreateTopicsResponse, frame, 7, body_at).topics
        assert (correlation_id, topic.name, topic.error_code) == (7, "made", expected)


def test_only_what_the_controller_decides_is_taken_out_of_an_envelope(client: RawClient) -> None:
    assert forwarded(client, MetadataRequest(topics=[]), 12).error_code == ErrorCode.INVALID_REQUEST
    broken = EnvelopeRequest(b"\x00\x13\x00\x07", None, socket.inet_aton("192.0.2.7"))
    assert client.ask(broken, 0).error_code == ErrorCode.INVALID_REQUEST
    assert client.ask(creation("served still"), 7).topics
