"""Garbage, lies and rudeness: a specific error or a clean close, and everybody else is served."""

from __future__ import annotations

import resource
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from ottla.broker.network.router import APIS, ApiKey
from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.types import NODE_SOFTWARE
from ottla.wire.codec import encode
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.metadata import MetadataRequest
from raw_client import RawClient
from records_kit import batch, fetch_request, produce, values_in


@pytest.fixture
def broker(ottla_broker: Broker) -> Iterator[Broker]:
    """The session's broker, which must serve others and have logged no traceback afterwards."""
    already_logged = len(ottla_broker.log_text())
    yield ottla_broker
    with RawClient(ottla_broker.bootstrap) as client:
        assert client.ask(MetadataRequest(topics=[]), 12).brokers
    assert "Traceback" not in ottla_broker.log_text()[already_logged:]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 10, 9999, 0, 1, -1),
        struct.pack(">ihhih", 10, 0, 99, 1, -1),
        struct.pack(">ihhih", 10, 3, 12, 1, 500),
        struct.pack(">ihhih", 10, -1, -1, -1, -7),
        bytes(range(255, 0, -1)),
    ],
)
def test_garbage_closes_the_connection(broker: Broker, data: bytes) -> None:
    with RawClient(broker.bootstrap) as client:
        client.socket.sendall(data)
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("api", list(APIS.values()), ids=lambda api: api.name)
def test_a_body_that_is_none_closes_the_connection(broker: Broker, api) -> None:  # type: ignore[no-untyped-def]
    with RawClient(broker.bootstrap) as client:
        client.send_bytes(MetadataRequest, api.key, api.last, b"\xff" * 5)
        assert client.is_closed_by_peer()


def test_bytes_after_a_body_are_ignored(broker: Broker) -> None:
    """librdkafka 2.16 asks for all topics like this."""
    with RawClient(broker.bootstrap) as client:
        body = bytes.fromhex("00000000010000")
        client.send_bytes(MetadataRequest, ApiKey.METADATA, 13, body)
        assert client.receive().brokers


def test_a_half_frame_holds_nobody_up(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as half, RawClient(broker.bootstrap) as other:
        half.socket.sendall(struct.pack(">i", 1_000_000) + b"only this")
        assert other.ask(MetadataRequest(topics=[]), 12).brokers


def test_many_half_frames_cannot_fill_the_memory(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("served")
    with RawClient(broker.bootstrap) as client:
        produce(client, "served", batch(b"x" * 5_000_000))
        before = _resident_bytes(broker.pid)
        halves = [RawClient(broker.bootstrap) for _ in range(400)]
        for half in halves:
            half.socket.sendall(struct.pack(">i", 100_000_000) + b"only this!")
        answer = produce(client, "served", batch(b"y" * 5_000_000))
        assert (answer.error_code, answer.base_offset) == (0, 1)
        grown = _resident_bytes(broker.pid) - before
        for half in halves:
            half.socket.close()
    assert grown < 32 * 1024 * 1024


def test_a_frame_may_arrive_byte_by_byte(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = struct.pack(">hhih", ApiKey.METADATA, 12, 1, -1) + b"\0"
        frame = head + encode(MetadataRequest(topics=[]), 12)
        for byte in struct.pack(">i", len(frame)) + frame:
            client.socket.sendall(bytes([byte]))
        assert len(client.receive_frame()) > 4


@pytest.mark.parametrize("version", [5, 77, 32_000])
def test_a_newer_api_versions_gets_an_answer_every_client_reads(
    broker: Broker, version: int
) -> None:
    with RawClient(broker.bootstrap) as client:
        sent = client.send_bytes(ApiVersionsRequest, ApiKey.API_VERSIONS, version, b"\x01\x02")
        client.expect_no_reply(sent)
        frame = client.receive_frame()
        error, count = struct.unpack_from(">hi", frame, 4)
        assert error == ErrorCode.UNSUPPORTED_VERSION
        assert struct.unpack_from(">hhh", frame, 10) == (18, 0, 4)
        assert (count, len(frame)) == (1, 16)
        reply = client.ask(ApiVersionsRequest("test", "1"), 4)
        assert isinstance(reply, ApiVersionsResponse)


def test_everything_advertised_is_served_and_nothing_more(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        reply = client.ask(ApiVersionsRequest("test", "1"), 4)
    told = {entry.api_key: (entry.min_version, entry.max_version) for entry in reply.api_keys}
    assert told == {api.key: (api.first, api.last) for api in APIS.values() if not api.for_nodes}


def test_nodes_are_told_what_they_speak_with_each_other(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        reply = client.ask(ApiVersionsRequest(NODE_SOFTWARE, "1"), 4)
    assert {entry.api_key for entry in reply.api_keys} == APIS.keys()


def test_a_client_that_never_reads_is_let_go_and_others_are_served(
    ottla_broker_factory,  # type: ignore[no-untyped-def]
) -> None:
    broker = ottla_broker_factory(connection_write_timeout_ms=1_000)
    broker.create_topic("full")
    with RawClient(broker.bootstrap) as writer, RawClient(broker.bootstrap) as deaf:
        for _ in range(8):
            produce(writer, "full", batch(b"x" * 8_000_000))
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(8):
            deaf.send(fetch_request("full", {0: 0}, partition_max_bytes=50_000_000), 12)
        while "has not read its replies" not in broker.log_text():
            assert produce(writer, "full", batch(b"still here")).error_code == 0


def test_one_connection_may_not_hold_more_than_its_share(
    ottla_broker_factory,  # type: ignore[no-untyped-def]
) -> None:
    broker = ottla_broker_factory(connection_max_request_bytes=100_000)
    broker.create_topic("busy")
    with RawClient(broker.bootstrap) as client:
        data = batch(b"x" * 50_000)

        def send() -> None:
            for _ in range(50):
                client.send(_produce(data), 12)

        sender = threading.Thread(target=send)
        sender.start()
        offsets = []
        while len(offsets) < 50:
            reply = _receive_any(client)
            offsets.append(reply)
        sender.join()
        assert offsets == list(range(50))


def _produce(data: bytearray):  # type: ignore[no-untyped-def]
    from records_kit import produce_request

    return produce_request("busy", {0: data})


def _receive_any(client: RawClient) -> int:
    frame = client.receive_frame()
    # correlation id, tags, topics, name, partitions, index, error, base offset
    at = 4 + 1 + 1 + 1 + len("busy") + 1 + 4
    error, offset = struct.unpack_from(">hq", frame, at)
    assert error == 0
    return int(offset)


def test_ten_thousand_idle_connections_cost_no_buffers(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    count = min(10_000, limits[1] - 500)
    broker = ottla_broker_factory()
    idle: list[socket.socket] = []
    try:
        with RawClient(broker.bootstrap) as client:
            client.ask(ListGroupsRequest(), 4)
            before = _resident_bytes(broker.pid)
            host, _, port = broker.bootstrap.rpartition(":")
            idle += [socket.create_connection((host, int(port))) for _ in range(count)]
            assert client.ask(ListGroupsRequest(), 4).error_code == 0
            grown = _resident_bytes(broker.pid) - before
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert grown / count < 8 * 1024


def test_an_idle_connection_is_closed_after_its_time(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory(connections_max_idle_ms=200)
    with RawClient(broker.bootstrap) as client:
        assert client.ask(MetadataRequest(topics=[]), 12).brokers
        assert client.is_closed_by_peer()


def _resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_values_survive_all_of_the_above(broker: Broker, ottla_topic: str) -> None:
    with RawClient(broker.bootstrap) as client:
        produce(client, ottla_topic, batch(b"kept"))
        reply = client.ask(fetch_request(ottla_topic, {0: 0}), 12)
        assert values_in(reply.responses[0].partitions[0].records) == [b"kept"]
