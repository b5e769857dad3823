"""BrokerHeartbeat, versions 0 and 1 (KIP-631, 858): a broker lives, and tells what it wants.

Spoken between nodes. It is unfenced when it has read the metadata up to its own registration, and
may stop when the others know who leads instead. An answer is a lease (ADR 0011): it is given when a
majority has confirmed that this is still the controller.
"""

from __future__ import annotations

from ottla.broker.control.asking import ask_controller
from ottla.broker.control.probing import HeartbeatsOf
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


async def handle(
    services: Services, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    log = services.controller.partition
    context.memory[HeartbeatsOf] = HeartbeatsOf(request.broker_id, request.broker_epoch)
    reply: BrokerHeartbeatResponse = await ask_controller(
        services,
        lambda controller, now, ticket: controller.broker_heartbeat(
            request, log.end_offset, now, ticket
        ),
    )
    await services.quorum.confirmations.confirmed()
    return reply


def error_response(request: BrokerHeartbeatRequest, error: Exception) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code=code_of(error))
