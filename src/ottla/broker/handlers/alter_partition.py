"""AlterPartition, versions 2 and 3 (KIP-497, 841, 903): a leader asks for other in-sync replicas.

Spoken between nodes; versions 0 and 1 name topics, which Kafka 4 does not speak any more either.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


def handle(
    services: Services, context: RequestContext, request: AlterPartitionRequest
) -> Awaitable[AlterPartitionResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.alter_partition(request, now, ticket),
    )


def error_response(request: AlterPartitionRequest, error: Exception) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=code_of(error))
