"""A way to a broker whose fetches are answered, for a while or for good, with no records."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

from ottla.client.settings import split_address
from ottla.wire.codec import decode
from ottla.wire.framing import RequestHead, read_reply_head
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from scenarios.scripted_broker import ScriptedBroker, reply

TIMEOUT_S: Final = 60.0
FOR_GOOD: Final = 1 << 30
FLEXIBLE: Final = {kind.API_KEY: kind.FLEXIBLE for kind in (FetchRequest, MetadataRequest)}


class WithholdingBroker(ScriptedBroker):
    """Speaks for a real broker; of the answers with records, `withheld` more come without them."""

    def __init__(self, real: str, *, withheld: int = 0) -> None:
        super().__init__(self._pass_on, lambda key, version: version in FLEXIBLE.get(key, ()))
        self._real = real
        self.withheld = withheld

    def _pass_on(self, head: RequestHead, frame: memoryview) -> bytes:
        answer = self._ask(frame)
        if head.api_key == MetadataRequest.API_KEY:
            told = _read(MetadataResponse, answer, head)
            for broker in told.brokers:
                broker.host, broker.port = split_address(self.address)
            return reply(head, told)
        if head.api_key == FetchRequest.API_KEY and self.withheld:
            return reply(head, self._emptied(_read(FetchResponse, answer, head)))
        return struct.pack(">i", len(answer)) + answer

    def _emptied(self, told: Any) -> Any:
        parts = [part for topic in told.responses for part in topic.partitions if part.records]
        self.withheld -= bool(parts)
        for part in parts:
            part.records = b""
        return told

    def _ask(self, frame: memoryview) -> bytes:
        with (
            socket.create_connection(split_address(self._real), TIMEOUT_S) as upstream,
            upstream.makefile("rb") as stream,
        ):
            upstream.sendall(struct.pack(">i", len(frame)) + bytes(frame))
            return stream.read(struct.unpack(">i", stream.read(4))[0])


def _read(kind: Any, answer: bytes, head: RequestHead) -> Any:
    _, pos = read_reply_head(memoryview(answer), kind, head.version)
    return decode(kind, answer, head.version, pos)
