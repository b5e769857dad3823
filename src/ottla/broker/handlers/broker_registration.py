"""BrokerRegistration, versions 0 to 4 (KIP-631, 858, 966): a broker becomes known to the cluster.

Spoken between nodes. A broker that comes without proof of a clean stop is answered once it has left
the in-sync replicas of all that others can lead. Left out: the migration from ZooKeeper.
"""

from __future__ import annotations

import logging

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import (
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRegistration,
    UnsupportedVersion,
    code_of,
)
from ottla.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

logger = logging.getLogger(__name__)


async def handle(
    services: Services, context: RequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    try:
        return await _registered(services, request)
    except DuplicateBrokerRegistration as error:
        # The first may have died a moment ago, and this be its next life.
        if not await services.probes.is_gone(request.broker_id):
            logger.warning("a broker at %s is not let in: %s", context.host or "this node", error)
            raise
        return await _registered(services, request)
    except (InvalidRegistration, InconsistentClusterId, UnsupportedVersion) as error:
        # The answer has a code and no words.
        logger.warning("a broker at %s is not let in: %s", context.host or "this node", error)
        raise


async def _registered(
    services: Services, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    reply: BrokerRegistrationResponse = await ask_controller(
        services,
        lambda controller, now, ticket: controller.broker_registration(request, now, ticket),
    )
    return reply


def error_response(
    request: BrokerRegistrationRequest, error: Exception
) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(error_code=code_of(error))
