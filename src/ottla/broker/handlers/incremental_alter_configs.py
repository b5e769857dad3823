"""IncrementalAlterConfigs, versions 0 and 1 (KIP-339): sets, deletes, appends and subtracts.

Settings of groups, of client metrics and of loggers are refused; the level of the log is the
broker's setting log.level.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Awaitable[IncrementalAlterConfigsResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.incremental_alter_configs(request, now, ticket),
    )


def error_response(
    request: IncrementalAlterConfigsRequest, error: Exception
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
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
