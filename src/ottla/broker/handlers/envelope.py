"""Envelope, version 0 (KIP-590): a request that a client has sent to another node.

Spoken between nodes. The controller answers the request inside as if its client had sent it here;
errors of that request are in its own reply. Left out: the client's principal, as there is no
authorizer yet.
"""

from __future__ import annotations

import socket

from ottla.broker.network.router import CloseConnection
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import InvalidRequest, NotController, code_of
from ottla.wire.codec import MalformedMessage
from ottla.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse


async def handle(
    services: Services, context: RequestContext, request: EnvelopeRequest
) -> EnvelopeResponse:
    if not services.leadership.is_leader:
        raise NotController("This node is not the controller.")
    host = _host(request.client_host_address)
    frame = memoryview(request.request_data)
    try:
        reply = await services.router.answer_frame(frame, host, context.listener)
    except (CloseConnection, MalformedMessage) as error:
        raise InvalidRequest(f"The request inside cannot be read: {error}") from error
    return EnvelopeResponse(response_data=reply)


def _host(address: bytes) -> str:
    families = {4: socket.AF_INET, 16: socket.AF_INET6}
    family = families.get(len(address))
    if family is None:
        raise InvalidRequest(f"An address of {len(address)} bytes.")
    return socket.inet_ntop(family, address)


def error_response(request: EnvelopeRequest, error: Exception) -> EnvelopeResponse:
    return EnvelopeResponse(error_code=code_of(error))
