"""UpdateFeatures, versions 0 to 2 (KIP-584, 778, 1022): features get higher levels, or lower ones.

All that a request names is changed or nothing. A level is lowered only where what was written at it
can still be read; the unsafe way, which would throw metadata away, is refused, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


def handle(
    services: Services, context: RequestContext, request: UpdateFeaturesRequest
) -> Awaitable[UpdateFeaturesResponse]:
    return ask_controller(
        services,
        lambda controller, now, ticket: controller.update_features(request, now, ticket),
    )


def error_response(request: UpdateFeaturesRequest, error: Exception) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code_of(error), error_message=str(error))
