"""A request that only the controller can answer, on its way to it in an envelope (KIP-590)."""

from __future__ import annotations

import importlib
import ipaddress
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.control.channel import ControllerChannel
from ottla.broker.control.needs import Leadership
from ottla.config import BrokerConfig
from ottla.errors import NotController
from ottla.wire.codec import MalformedMessage, decode
from ottla.wire.framing import RequestHead, read_reply_head
from ottla.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.network.router import Api

NOWHERE: Final = bytes(4)


class ForwardingServices(Protocol):
    config: BrokerConfig
    leadership: Leadership
    channel: ControllerChannel


async def forward(
    services: ForwardingServices,
    api: Api,
    head: RequestHead,
    request: Message,
    frame: memoryview,
    host: str,
) -> Message:
    """The controller's reply, errors included, as it would have answered the client itself."""
    limit_ms = services.config.request_timeout_ms
    # Clients that do not care send 0, and are answered by a controller in any case.
    wanted_ms = getattr(request, "timeout_ms", 0) or limit_ms
    envelope = EnvelopeRequest(bytes(frame), None, _packed(host))
    timeout_s = max(0, min(limit_ms, wanted_ms)) / 1000
    # A controller that works on it is not asked a second time.
    reply = await services.channel.ask(envelope, EnvelopeResponse, timeout_s, try_s=timeout_s)
    messages = importlib.import_module(f"ottla.wire.messages.{api.module}")
    kind: type[Message] = getattr(messages, f"{api.name}Response")
    data = memoryview(reply.response_data or b"")
    try:
        _, body_at = read_reply_head(data, kind, head.version)
        return decode(kind, data, head.version, body_at)
    except MalformedMessage as error:
        raise NotController(f"the controller's reply cannot be read: {error}") from error


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return NOWHERE
