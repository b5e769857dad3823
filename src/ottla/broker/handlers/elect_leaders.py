"""ElectLeaders, versions 0 to 2 (KIP-183, 460): the preferred leaders, or any where there is none.

The answer comes when the elections are committed, so the request's timeout is not needed.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse


def handle(
    services: Services, context: RequestContext, request: ElectLeadersRequest
) -> Awaitable[ElectLeadersResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.elect_leaders(request, now, ticket),
    )


def error_response(request: ElectLeadersRequest, error: Exception) -> ElectLeadersResponse:
    return ElectLeadersResponse(error_code=code_of(error))
