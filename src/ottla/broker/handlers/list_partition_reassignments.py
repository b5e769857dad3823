"""ListPartitionReassignments, version 0 (KIP-455): the partitions that are being moved."""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Awaitable[ListPartitionReassignmentsResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.list_partition_reassignments(
            request, now, ticket
        ),
    )


def error_response(
    request: ListPartitionReassignmentsRequest, error: Exception
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=code_of(error), error_message=str(error))
