"""AlterPartitionReassignments, versions 0 and 1 (KIP-455, 860): partitions move, or stop moving.

The answer comes when it is written down that they move; ListPartitionReassignments tells when they
have arrived. A second move of a partition replaces the first, and cancelling it goes back to where
the partition was before both.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


def handle(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Awaitable[AlterPartitionReassignmentsResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.alter_partition_reassignments(
            request, now, ticket
        ),
    )


def error_response(
    request: AlterPartitionReassignmentsRequest, error: Exception
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(error_code=code_of(error), error_message=str(error))
