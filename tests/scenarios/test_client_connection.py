"""One connection of our client, against brokers that misbehave in every way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TypeVar

import pytest

from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.failures import (
    BadReply,
    CannotConnect,
    ConnectionLost,
    GaveUp,
    LoginFailed,
    NoAnswer,
    UnsupportedBroker,
)
from ottla.client.security import Security
from ottla.client.settings import ClientSettings
from ottla.types import TopicPartition
from ottla.wire.codec import decode
from ottla.wire.framing import RequestHead
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from scenarios.scripted_broker import Script, ScriptedBroker, greeting, reply

T = TypeVar("T")

REQUESTS = (
    *(ApiVersionsRequest, HeartbeatRequest, MetadataRequest),
    *(SaslHandshakeRequest, SaslAuthenticateRequest),
)
APIS = {kind.API_KEY: kind for kind in REQUESTS}
RANGES = [(18, 0, 4), (12, 0, 4), (3, 0, 13), (17, 0, 1), (36, 0, 2)]
HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")


def is_flexible(api_key: int, version: int) -> bool:
    return version in APIS[api_key].FLEXIBLE


def scripted(answer: Script, greet: Script | None = None) -> ScriptedBroker:
    """Greets as it should, then answers as the test says."""
    hello = greet or greeting(RANGES)

    def script(head: RequestHead, frame: memoryview) -> bytes | None:
        return hello(head, frame) if head.api_key == 18 else answer(head, frame)

    return ScriptedBroker(script, is_flexible)


def with_connection(
    broker: ScriptedBroker, use: Callable[[Connection], Awaitable[T]], **settings: float
) -> T:
    async def main() -> T:
        connection = await Connection.open(
            broker.address, ClientSettings((broker.address,), **settings)
        )
        try:
            return await use(connection)
        finally:
            connection.abort("the test is over")

    return asyncio.run(main())


def heartbeat(head: RequestHead, frame: memoryview) -> bytes:
    return reply(head, HeartbeatResponse(error_code=head.correlation_id))


async def ask(connection: Connection) -> HeartbeatResponse:
    return await connection.ask(HEARTBEAT, HeartbeatResponse)


def test_versions_are_the_newest_that_both_have():
    with scripted(heartbeat, greeting([(18, 0, 4), (12, 0, 2), (3, 5, 99)])) as broker:

        async def use(connection: Connection) -> tuple[int, int, int]:
            await ask(connection)
            return (
                connection.version_of(HeartbeatRequest),
                connection.version_of(MetadataRequest),
                connection.version_of(MetadataRequest, 7),
            )

        assert with_connection(broker, use) == (2, 13, 7)
        assert broker.heads[-1].version == 2


@pytest.mark.parametrize(("version_max", "asked"), [(4, [4]), (3, [4, 3]), (0, [4, 0])])
def test_a_broker_that_is_older_than_our_greeting_is_greeted_again(version_max, asked):
    ranges = [(18, 0, version_max), (12, 0, 4)]
    with scripted(heartbeat, greeting(ranges, version_max)) as broker:
        with_connection(broker, ask)
        assert [head.version for head in broker.heads if head.api_key == 18] == asked


def test_a_broker_that_names_no_versions_with_its_refusal_is_asked_in_the_oldest():
    with scripted(heartbeat, greeting([], 0)) as broker:

        async def use(connection: Connection) -> None:
            with pytest.raises(UnsupportedBroker, match="does not have Heartbeat"):
                await ask(connection)

        with_connection(broker, use)
        assert [head.version for head in broker.heads] == [4, 0]


def test_an_api_without_a_common_version_is_named_with_both_ranges():
    with scripted(heartbeat, greeting([(18, 0, 4), (3, 20, 22)])) as broker:

        async def use(connection: Connection) -> None:
            with pytest.raises(UnsupportedBroker, match=r"versions 20 to 22, this client in 0 to"):
                connection.version_of(MetadataRequest)
            with pytest.raises(UnsupportedBroker, match="does not have Fetch"):
                connection.version_of(FetchRequest)

        with_connection(broker, use)


def test_requests_are_pipelined_and_each_gets_its_own_reply():
    held: list[bytes] = []

    def answer(head: RequestHead, frame: memoryview) -> bytes | None:
        held.append(heartbeat(head, frame))
        return b"".join(held) if len(held) == 5 else None

    with scripted(answer) as broker:

        async def use(connection: Connection) -> list[int]:
            replies = await asyncio.gather(*(ask(connection) for _ in range(5)))
            return [one.error_code for one in replies]

        # The greeting was the first request.
        assert with_connection(broker, use) == [2, 3, 4, 5, 6]


def test_a_caller_who_gives_up_takes_nobody_elses_reply():
    held: list[bytes] = []

    def answer(head: RequestHead, frame: memoryview) -> bytes | None:
        held.append(heartbeat(head, frame))
        return b"".join(held) if len(held) == 2 else None

    with scripted(answer) as broker:

        async def use(connection: Connection) -> int:
            first = asyncio.ensure_future(ask(connection))
            second = asyncio.ensure_future(ask(connection))
            await asyncio.sleep(0)
            first.cancel()
            return (await second).error_code

        assert with_connection(broker, use) == 3


@pytest.mark.parametrize(
    ("topic_count", "piece_bytes"), [(2, 1), (2, 3), (400, 5000), (400, 70_000)]
)
def test_replies_may_come_in_pieces_of_any_size(topic_count, piece_bytes):
    """With many topics a reply is longer than one read, and gets a buffer of its own."""
    topics = [MetadataResponseTopic(name=f"topic-{at}-{'x' * 200}") for at in range(topic_count)]

    def answer(head: RequestHead, _: memoryview) -> None:
        whole = reply(head, MetadataResponse(topics=topics))
        for at in range(0, len(whole), piece_bytes):
            broker.send(whole[at : at + piece_bytes])

    with scripted(answer) as broker:

        async def use(connection: Connection) -> list[str | None]:
            message = await connection.ask(MetadataRequest(topics=None), MetadataResponse)
            return [topic.name for topic in message.topics]

        assert with_connection(broker, use) == [topic.name for topic in topics]


@pytest.mark.parametrize(
    ("garbage", "line"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is this the port of a Kafka listener"),
        (b"\x00\x00\x00\x02\x00\x00", "no Kafka reply"),
        (b"\xff\xff\xff\xff\x00\x00\x00\x00", "no Kafka reply"),
        (b"\x00\x00\x00\x04\x7f\x00\x00\x00", "answered a request that was not sent"),
        (b"\x00\x00\x00\x05\x00\x00\x00\x02\x00", "cannot be read"),
    ],
)
def test_garbage_is_one_readable_line_with_the_address(garbage, line):
    with scripted(lambda *_: garbage) as broker:

        async def use(connection: Connection) -> str:
            with pytest.raises(BadReply) as caught:
                await ask(connection)
            assert not connection.is_usable
            return str(caught.value)

        told = with_connection(broker, use)
        assert line in told
        assert broker.address in told
        assert "\n" not in told


def test_garbage_instead_of_a_greeting_is_told_at_once_and_not_tried_for_a_minute():
    script: Script = lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n"  # noqa: E731
    with scripted(script, script) as broker:

        async def main() -> None:
            async with Cluster(ClientSettings((broker.address,))) as cluster:
                with pytest.raises(BadReply, match=broker.address):
                    await cluster.topics()

        asyncio.run(main())
        assert len(broker.heads) == 1


def test_a_broker_that_accepts_and_never_greets_is_named():
    with scripted(heartbeat, lambda *_: None) as broker:
        with pytest.raises(CannotConnect) as caught:
            with_connection(broker, ask, connect_timeout_s=0.2)
        assert str(caught.value) == f"{broker.address}: no connection and no greeting in 0.2 s"


def test_a_broker_that_never_answers_is_named_with_the_request():
    with scripted(lambda *_: None) as broker:

        async def use(connection: Connection) -> None:
            with pytest.raises(NoAnswer) as caught:
                await ask(connection)
            assert str(caught.value) == f"{broker.address} has not answered Heartbeat in 0.2 s"
            # Replies come in turn: behind one that is missing nothing can be told apart.
            assert not connection.is_usable
            with pytest.raises(NoAnswer):
                await ask(connection)

        with_connection(broker, use, request_timeout_s=0.2)


def test_a_silent_cluster_is_given_up_after_the_retry_timeout():
    with scripted(lambda *_: None) as broker:
        settings = ClientSettings((broker.address,), request_timeout_s=0.1, retry_timeout_s=0.5)

        async def main() -> None:
            async with Cluster(settings) as cluster:
                with pytest.raises(GaveUp) as caught:
                    await cluster.fetch(TopicPartition("t", 0), 0, max_bytes=1000)
                line = str(caught.value)
                assert line.startswith("reading t-0 at 0: tried for")
                assert f"{broker.address} has not answered Metadata in 0.1 s" in line

        asyncio.run(main())


def test_whoever_waits_hears_of_a_closed_connection():
    with scripted(lambda *_: b"") as broker:

        async def use(connection: Connection) -> None:
            results = await asyncio.gather(
                *(ask(connection) for _ in range(3)), return_exceptions=True
            )
            assert [type(result) for result in results] == [ConnectionLost] * 3
            assert len({id(result) for result in results}) == 3
            assert f"{broker.address} closed the connection" in str(results[0])

        with_connection(broker, use)


def test_nobody_listens_there():
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

    async def main() -> None:
        both = (address, address.replace("127.0.0.1", "localhost"))
        settings = ClientSettings(both, retry_timeout_s=0.3)
        async with Cluster(settings) as cluster:
            with pytest.raises(GaveUp) as caught:
                await cluster.topics()
            assert "no broker answers" in str(caught.value)
            for each in settings.bootstrap:
                assert each in str(caught.value)

    asyncio.run(main())


# -------------------------------------------------------------------------------------- logins


def log_in(broker: ScriptedBroker) -> str:
    """What our client says about a broker that behaves strangely during a login by SCRAM."""
    security = Security("SASL_PLAINTEXT", "SCRAM-SHA-256", "alice", "secret")
    settings = ClientSettings((broker.address,), security=security)

    async def main() -> str:
        with pytest.raises(LoginFailed) as caught:
            await Connection.open(broker.address, settings)
        return str(caught.value)

    return asyncio.run(main())


def scram(first: Callable[[str], str], final: str) -> Script:
    """Answers the two steps of SCRAM; `first` is given the client's nonce."""
    steps: list[bool] = []

    def answer(head: RequestHead, frame: memoryview) -> bytes:
        if head.api_key == SaslHandshakeRequest.API_KEY:
            return reply(head, SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]))
        request = decode(SaslAuthenticateRequest, frame, head.version, head.body_at)
        steps.append(True)
        text = final
        if len(steps) == 1:
            text = first(request.auth_bytes.decode().rpartition("r=")[2])
        return reply(head, SaslAuthenticateResponse(auth_bytes=text.encode()))

    return answer


SALT = "s=c2FsdHNhbHRzYWx0c2FsdA==,i=4096"


@pytest.mark.parametrize(
    ("first", "final", "reason"),
    [
        (lambda nonce: f"r={nonce}more,{SALT}", "v=bm90IHRoZSBzaWduYXR1cmU=", "server signature"),
        (lambda nonce: f"r={nonce}more,{SALT}", "e=other-error", "other-error"),
        (lambda nonce: f"r={nonce[::-1]}more,{SALT}", "", "nonce"),
        (lambda nonce: "hello", "", "Malformed"),
    ],
    ids=["signature", "error", "nonce", "rubbish"],
)
def test_a_broker_that_does_not_know_the_password_is_not_believed(first, final, reason):
    with scripted(scram(first, final)) as broker:
        line = log_in(broker)
        assert f"{broker.address} did not prove by SCRAM-SHA-256" in line
        assert reason in line
        assert "alice" in line
        assert "secret" not in line


def test_a_broker_that_refuses_the_handshake_is_quoted():
    def answer(head: RequestHead, _: memoryview) -> bytes:
        return reply(head, SaslHandshakeResponse(error_code=34))

    with scripted(answer) as broker:
        assert "does not begin a login: ILLEGAL_SASL_STATE" in log_in(broker)
