"""CreatePartitions, versions 0 to 3 (KIP-195, 599). Left out: mutation quotas."""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> Awaitable[CreatePartitionsResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.create_partitions(request, now, ticket),
    )


def error_response(request: CreatePartitionsRequest, error: Exception) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=topic.name, error_code=code_of(error), error_message=str(error)
            )
            for topic in request.topics
        ]
    )
