"""CreateTopics, versions 2 to 7 (KIP-195, 464, 525, 516).

Each topic succeeds or fails by itself, with a message. The answer comes when the topics are
committed and can be used, so the request's timeout is not needed. Left out: creation policies,
mutation quotas.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


def handle(
    services: Services, context: RequestContext, request: CreateTopicsRequest
) -> Awaitable[CreateTopicsResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.create_topics(request, now, ticket),
    )


def error_response(request: CreateTopicsRequest, error: Exception) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(
                name=topic.name, error_code=code_of(error), error_message=str(error), configs=[]
            )
            for topic in request.topics
        ]
    )
