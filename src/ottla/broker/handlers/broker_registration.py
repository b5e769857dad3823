"""BrokerRegistration, versions 0 to 4 (KIP-631, 858, 966): a broker becomes known to the cluster.

Spoken between nodes. A broker that comes without proof of a clean stop is answered once it has left
the in-sync replicas of all that others can lead. Left out: the migration from ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)


def handle(
    services: Services, context: RequestContext, request: BrokerRegistrationRequest
) -> Awaitable[BrokerRegistrationResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.broker_registration(request, now, ticket),
    )


def error_response(
    request: BrokerRegistrationRequest, error: Exception
) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(error_code=code_of(error))
