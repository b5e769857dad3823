"""AlterConfigs, versions 0 to 2: replaces all settings of a topic, a broker or all brokers.

Settings of groups, of client metrics and of loggers are refused; the level of the log is the
broker's setting log.level.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def handle(
    services: Services, context: RequestContext, request: AlterConfigsRequest
) -> Awaitable[AlterConfigsResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.alter_configs(request, now, ticket),
    )


def error_response(request: AlterConfigsRequest, error: Exception) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=code_of(error),
                error_message=str(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )
