"""DeleteTopics, versions 1 to 6, by name and from 6 on by id (KIP-516).

As in Kafka, internal topics may be deleted. Left out: mutation quotas.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import InvalidRequest, TopicDeletionDisabled, code_of
from ottla.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


def handle(
    services: Services, context: RequestContext, request: DeleteTopicsRequest
) -> Awaitable[DeleteTopicsResponse]:
    if not services.config.delete_topic_enable:
        message = "Topics may not be deleted here (delete.topic.enable is false)."
        # The code of its own came with version 3.
        raise TopicDeletionDisabled(message) if context.version >= 3 else InvalidRequest(message)
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.delete_topics(request, now, ticket),
    )


def error_response(request: DeleteTopicsRequest, error: Exception) -> DeleteTopicsResponse:
    by_name = [DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=topic.name,
                topic_id=topic.topic_id,
                error_code=code_of(error),
                error_message=str(error),
            )
            for topic in [*request.topics, *by_name]
        ]
    )
