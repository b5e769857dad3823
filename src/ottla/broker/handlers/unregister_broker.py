"""UnregisterBroker, version 0 (KIP-631): the cluster forgets a broker that does not come back.

As in Kafka, one that lives may be forgotten too: it registers again.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


def handle(
    services: Services, context: RequestContext, request: UnregisterBrokerRequest
) -> Awaitable[UnregisterBrokerResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.unregister_broker(request, now, ticket),
    )


def error_response(request: UnregisterBrokerRequest, error: Exception) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=code_of(error), error_message=str(error))
