"""A client of raw frames in the broker's own loop, with as many requests under way as it likes."""

from __future__ import annotations

import asyncio
import importlib
import re
import struct
from typing import Any

from ottla.broker.network.router import APIS
from ottla.testing.disks import MemoryDisk
from ottla.wire.codec import decode, encode
from ottla.wire.schema import Message

_CLIENT = b"sim"


class Gone(Exception):
    """The connection ended before the answer came: nobody knows what became of the request."""


class Caller(asyncio.Protocol):
    """One connection. What arrives when the power is off was never sent."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[type[Message], int, asyncio.Future[Any]]] = {}
        self._next_id = 0
        self._bytes = bytearray()
        self._is_lost = False

    @classmethod
    async def connect(cls, disk: MemoryDisk, address: tuple[str, int]) -> Caller:
        loop = asyncio.get_running_loop()
        try:
            _, caller = await loop.create_connection(lambda: cls(disk), *address)
        except OSError as error:
            raise Gone(str(error)) from None
        return caller

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        for _, _, future in self._waiting.values():
            if not future.done():
                future.set_exception(Gone("the connection is closed"))
                future.exception()
        self._waiting.clear()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, request: Message, version: int, *, silent: bool = False) -> asyncio.Future[Any]:
        """The reply to come; to a `silent` request there is none."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._is_lost or self._transport is None or self._transport.is_closing():
            future.set_exception(Gone("the connection is closed"))
            future.exception()
            return future
        self._next_id += 1
        head = struct.pack(">hhih", request.API_KEY, version, self._next_id, len(_CLIENT))
        tags = b"\0" if version >= APIS[request.API_KEY].flexible else b""
        frame = head + _CLIENT + tags + encode(request, version)
        self._transport.write(struct.pack(">i", len(frame)) + frame)
        if not silent:
            self._waiting[self._next_id] = (_reply_kind(type(request)), version, future)
        return future

    async def ask(self, request: Message, version: int) -> Any:
        return await self.send(request, version)

    def data_received(self, data: bytes) -> None:
        if self._disk.is_off:
            return
        self._bytes += data
        while len(self._bytes) >= 4:
            (size,) = struct.unpack_from(">i", self._bytes)
            if len(self._bytes) < 4 + size:
                return
            frame = bytes(self._bytes[4 : 4 + size])
            del self._bytes[: 4 + size]
            self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        kind, version, future = self._waiting.pop(correlation_id)
        has_tags = version >= APIS[kind.API_KEY].flexible
        if not future.done():
            future.set_result(decode(kind, frame, version, 5 if has_tags else 4))


_kinds: dict[type[Message], type[Message]] = {}


def _reply_kind(request: type[Message]) -> type[Message]:
    if request not in _kinds:
        module = importlib.import_module(request.__module__)
        _kinds[request] = getattr(module, re.sub("Request$", "Response", request.__name__))
    return _kinds[request]
