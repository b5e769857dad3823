"""ControllerRegistration, version 0 (KIP-919): a controller tells where it is and what it knows.

Spoken between nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


def handle(
    services: Services, context: RequestContext, request: ControllerRegistrationRequest
) -> Awaitable[ControllerRegistrationResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.register_controller(request, now, ticket),
    )


def error_response(
    request: ControllerRegistrationRequest, error: Exception
) -> ControllerRegistrationResponse:
    return ControllerRegistrationResponse(error_code=code_of(error), error_message=str(error))
