"""AssignReplicasToDirs, version 0 (KIP-858): a broker tells in which directories its replicas lie.

Spoken between nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


def handle(
    services: Services, context: RequestContext, request: AssignReplicasToDirsRequest
) -> Awaitable[AssignReplicasToDirsResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.assign_replicas_to_dirs(request, now, ticket),
    )


def error_response(
    request: AssignReplicasToDirsRequest, error: Exception
) -> AssignReplicasToDirsResponse:
    return AssignReplicasToDirsResponse(error_code=code_of(error))
