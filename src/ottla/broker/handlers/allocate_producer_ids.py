"""AllocateProducerIds, version 0 (KIP-730): a broker gets a block of producer ids of its own.

Spoken between nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


def handle(
    services: Services, context: RequestContext, request: AllocateProducerIdsRequest
) -> Awaitable[AllocateProducerIdsResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.allocate_producer_ids(request, now, ticket),
    )


def error_response(
    request: AllocateProducerIdsRequest, error: Exception
) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=code_of(error))
