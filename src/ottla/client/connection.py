"""One TCP connection to one broker: requests out, replies in, in the same order.

A reply that is longer than what a read brings gets a buffer of its own, which the kernel fills
directly; records in it are handed out as views, so a large fetch is never copied on its way.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from functools import cache
from typing import Final, NamedTuple, TypeVar, cast

from ottla.client.failures import (
    BadReply,
    CannotConnect,
    ClientFailed,
    ConnectionLost,
    NoAnswer,
    NotTrusted,
    UnsupportedBroker,
)
from ottla.client.login import log_in
from ottla.client.settings import ClientSettings, split_address
from ottla.errors import ErrorCode
from ottla.wire.codec import MalformedMessage, decode
from ottla.wire.framing import frame_request, read_reply_head
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.schema import Message

READ_BUFFER_BYTES: Final = 64 * 1024
# More than any broker's largest batch; what claims to be longer is no reply.
REPLY_BYTES_MAX: Final = 512 * 1024 * 1024
REQUESTS_IN_FLIGHT_MAX: Final = 256
# A login that the broker lets expire is renewed by a new connection in good time.
SESSION_SHARE_USED: Final = 0.8
# What a connection is for: fetches wait at the broker, and nothing else should wait with them.
TALK: Final = "talk"
FETCH: Final = "fetch"
_SIZE: Final = struct.Struct(">i")
_ERROR_CODE: Final = struct.Struct(">h")
_CORRELATION_MASK: Final = 0x7FFF_FFFF

R = TypeVar("R", bound=Message)


class _Waiter(NamedTuple):
    correlation_id: int
    reply: asyncio.Future[memoryview]


class Connection(asyncio.BufferedProtocol):
    """Made by `Connection.open`; once it is broken it stays so, and another must be opened."""

    def __init__(self, address: str, settings: ClientSettings) -> None:
        self.address = address
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._broken: ClientFailed | None = None
        self._stale_at_s: float | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._reply_count = 0
        self._waiters: deque[_Waiter] = deque()
        self._room = asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
        self._writable = asyncio.Event()
        self._writable.set()
        self._scratch = memoryview(bytearray(READ_BUFFER_BYTES))
        self._leftover = b""
        self._frame: memoryview | None = None
        self._filled = 0

    @classmethod
    async def open(
        cls, address: str, settings: ClientSettings, tls: ssl.SSLContext | None = None
    ) -> Connection:
        """Connects, agrees on versions and logs in, all before one deadline."""
        connection = cls(address, settings)
        host, port = split_address(address)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await connection._loop.create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=tls,
                    server_hostname=host if tls is not None else None,
                )
                await connection._negotiate()
                connection._expire_after(await log_in(connection, settings.security))
        except TimeoutError:
            connection.abort("too slow to open")
            took = f"{settings.connect_timeout_s:g} s"
            raise CannotConnect(f"{address}: no connection and no greeting in {took}") from None
        except (ssl.SSLError, OSError) as error:
            connection.abort("not opened")
            raise _cannot_open(address, error, is_tls=tls is not None) from error
        except BaseException:
            connection.abort("not opened")
            raise
        return connection

    # ------------------------------------------------------------------------------- asking

    @property
    def is_usable(self) -> bool:
        """Whether a new request may be sent here."""
        if self._broken is not None or self._transport is None or self._transport.is_closing():
            return False
        return self._stale_at_s is None or self._loop.time() < self._stale_at_s

    @property
    def is_idle(self) -> bool:
        return not self._waiters

    def version_of(self, kind: type[Message], version_max: int | None = None) -> int:
        """The newest version that both sides have."""
        ours = kind.VERSIONS
        name = kind.__name__.removesuffix("Request")
        theirs = self._versions.get(kind.API_KEY)
        if theirs is None:
            raise UnsupportedBroker(f"{self.address} does not have {name}")
        last = min(ours.last, theirs[1], ours.last if version_max is None else version_max)
        if last < max(ours.first, theirs[0]):
            raise UnsupportedBroker(
                f"{self.address} has {name} in versions {theirs[0]} to {theirs[1]}, "
                f"this client in {ours.first} to {ours.last}"
            )
        return last

    async def ask(
        self,
        request: Message,
        kind: type[R],
        *,
        timeout_s: float | None = None,
        version_max: int | None = None,
    ) -> R:
        """Sends a request and reads its reply. Requests leave in the order of the calls."""
        version = self.version_of(type(request), version_max)
        frame = await self._exchange(request, version, timeout_s)
        return self._decode(kind, frame, version)

    def tell(self, request: Message) -> None:
        """Sends what is never answered: a produce with acks=0."""
        version = self.version_of(type(request))
        self._check_open()
        self._send(request, version)

    async def drained(self) -> None:
        """Until most of what was told has left; without answers nothing else holds us back."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                await self._writable.wait()
        except TimeoutError:
            self.abort("it does not take what it is sent")
        self._check_open()

    async def _exchange(
        self, request: Message, version: int, timeout_s: float | None
    ) -> memoryview:
        limit_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        reply: asyncio.Future[memoryview] = self._loop.create_future()
        # Between nodes each batch is such an exchange: `asyncio.timeout` costs three times this.
        timer = self._loop.call_later(limit_s, self._no_answer, request, reply, limit_s)
        try:
            await self._room.acquire()
            try:
                self._check_open()
                waiter = _Waiter(self._send(request, version), reply)
            except BaseException:
                self._room.release()
                raise
            self._waiters.append(waiter)
            return await reply
        finally:
            timer.cancel()

    def _no_answer(
        self, request: Message, reply: asyncio.Future[memoryview], limit_s: float
    ) -> None:
        """Replies come in order, so without this one there are none: everybody's request fails."""
        if not reply.done():
            name = type(request).__name__.removesuffix("Request")
            self._break(NoAnswer(f"{self.address} has not answered {name} in {limit_s:g} s"))

    def _send(self, request: Message, version: int) -> int:
        assert self._transport is not None
        self._correlation_id = correlation_id = (self._correlation_id + 1) & _CORRELATION_MASK
        chunks = frame_request(correlation_id, self._settings.client_id, request, version)
        if len(chunks) == 1:
            self._transport.write(chunks[0])
        else:
            self._transport.writelines(cast(list[bytes], chunks))
        return correlation_id

    def _decode(self, kind: type[R], frame: memoryview, version: int) -> R:
        try:
            _, pos = read_reply_head(frame, kind, version)
            return decode(kind, frame, version, pos)
        except MalformedMessage as error:
            failure = BadReply(f"{self.address} sent a reply that cannot be read: {error}")
            self._break(failure)
            raise failure from None

    # --------------------------------------------------------------------------- the greeting

    async def _negotiate(self) -> None:
        """Learns the broker's versions; one that does not know our question's says which it does.

        It then answers UNSUPPORTED_VERSION in the form of version 0 (KIP-511).
        """
        version = ApiVersionsRequest.VERSIONS.last
        while True:
            request = ApiVersionsRequest(
                client_software_name=self._settings.software,
                client_software_version=_own_version(),
            )
            frame = await self._exchange(request, version, None)
            reply = self._read_versions(frame, version)
            self._versions = {
                api.api_key: (api.min_version, api.max_version) for api in reply.api_keys
            }
            if reply.error_code == ErrorCode.NONE:
                return
            if reply.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
                raise BadReply(f"{self.address} refuses ApiVersions: error {reply.error_code}")
            _, theirs = self._versions.get(ApiVersionsRequest.API_KEY, (0, 0))
            version = max(0, min(version - 1, theirs))

    def _read_versions(self, frame: memoryview, version: int) -> ApiVersionsResponse:
        if len(frame) >= 6:
            (error_code,) = _ERROR_CODE.unpack_from(frame, 4)
            if error_code == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        return self._decode(ApiVersionsResponse, frame, version)

    def _expire_after(self, session_ms: int) -> None:
        if session_ms > 0:
            self._stale_at_s = self._loop.time() + session_ms / 1000 * SESSION_SHARE_USED

    # ------------------------------------------------------------------------------ transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError):
            self._break(_cannot_open(self.address, error, is_tls=True))
            return
        reason = f": {_reason(error)}" if error is not None else ""
        if self._reply_count < 2:
            # A broker closes a connection without TLS or without a login, and gives no reason.
            reason += " before it answered anything; does security.protocol fit this listener?"
        self._break(ConnectionLost(f"{self.address} closed the connection{reason}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._scratch
        return self._frame[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._frame is not None:
            self._filled += count
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._received(frame)
        elif self._leftover:
            joined = self._leftover + bytes(self._scratch[:count])
            self._leftover = b""
            self._cut_frames(memoryview(joined))
        else:
            self._cut_frames(self._scratch[:count])

    def _cut_frames(self, data: memoryview) -> None:
        position, end = 0, len(data)
        while end - position >= _SIZE.size and self._broken is None:
            (size,) = _SIZE.unpack_from(data, position)
            if not _SIZE.size <= size <= REPLY_BYTES_MAX:
                self._break(
                    BadReply(
                        f"{self.address} sent what is no Kafka reply (a frame of {size} bytes): "
                        "is this the port of a Kafka listener, and is it one of TLS?"
                    )
                )
                return
            position += _SIZE.size
            there = min(size, end - position)
            # Memory that is not written to costs nothing, so a long frame gets all of it at once.
            frame = memoryview(bytearray(size))
            frame[:there] = data[position : position + there]
            if there < size:
                self._frame, self._filled = frame, there
                return
            self._received(frame)
            position += size
        self._leftover = bytes(data[position:])

    def _received(self, frame: memoryview) -> None:
        (correlation_id,) = _SIZE.unpack_from(frame)
        waiter = self._waiters.popleft() if self._waiters else None
        if waiter is None or waiter.correlation_id != correlation_id:
            self._break(BadReply(f"{self.address} answered a request that was not sent"))
            if waiter is not None and not waiter.reply.done():
                waiter.reply.set_exception(self._failure())
            return
        self._room.release()
        self._reply_count += 1
        if not waiter.reply.done():
            waiter.reply.set_result(frame)

    # -------------------------------------------------------------------------------- the end

    def abort(self, reason: str) -> None:
        """Ends the connection at once; requests without an answer fail with `reason`."""
        self._break(ConnectionLost(f"{self.address}: {reason}"))

    def _check_open(self) -> None:
        if self._broken is not None:
            raise self._failure()
        if self._transport is None:
            raise ConnectionLost(f"{self.address} is not connected")

    def _failure(self) -> ClientFailed:
        """A new error for each waiter, since each adds its own traceback."""
        assert self._broken is not None
        return type(self._broken)(*self._broken.args)

    def _break(self, failure: ClientFailed) -> None:
        if self._broken is not None:
            return
        self._broken = failure
        self._writable.set()
        self._frame = None
        if self._transport is not None:
            self._transport.abort()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            self._room.release()
            if not waiter.reply.done():
                waiter.reply.set_exception(self._failure())


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _cannot_open(address: str, error: BaseException, *, is_tls: bool) -> ClientFailed:
    """What went wrong, and what a person can do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotTrusted(
            f"{address}: its certificate is not trusted ({error.verify_message}): "
            "give the certificate of its authority as ssl.truststore.location (PEM)"
        )
    if isinstance(error, ssl.SSLError) or (is_tls and isinstance(error, ConnectionResetError)):
        return NotTrusted(
            f"{address}: no TLS with it ({_reason(error)}): is this a listener of TLS, "
            "and does it want a certificate of yours (ssl.keystore.*)?"
        )
    return CannotConnect(f"{address}: {_reason(error)}")


@cache
def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ottla")
    except PackageNotFoundError:
        return "0"
