"""UpdateFeatures, versions 0 to 2 (KIP-584, 778, 853, 1022): features get higher levels, or lower.

All that a request names is changed or nothing. A level is lowered only where what was written at it
can still be read; the unsafe way, which would throw metadata away, is refused, as Kafka does. With
`kraft.version` 1 the voters of the setting become records.
"""

from __future__ import annotations

from ottla.broker.control.asking import ask_controller
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.cluster.features import KRAFT_VERSION, is_raised_quorum
from ottla.errors import ErrorCode, code_of, error_of
from ottla.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


async def handle(
    services: Services, context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    of_quorum = [each for each in request.feature_updates if each.feature == KRAFT_VERSION]
    others = [each for each in request.feature_updates if each.feature != KRAFT_VERSION]
    if of_quorum:
        # Two logs of decisions cannot be changed at one go, so nothing may be against it before.
        await _update(services, request, others, validate_only=True)
        await _raise_quorum(services, request, of_quorum[-1])
    response = await _update(services, request, others, validate_only=request.validate_only)
    response.results += [UpdatableFeatureResult(KRAFT_VERSION, ErrorCode.NONE, None)] * bool(
        of_quorum
    )
    return response


async def _update(
    services: Services,
    request: UpdateFeaturesRequest,
    wanted: list[FeatureUpdateKey],
    *,
    validate_only: bool,
) -> UpdateFeaturesResponse:
    asked = UpdateFeaturesRequest(
        timeout_ms=request.timeout_ms, feature_updates=wanted, validate_only=validate_only
    )
    voters = services.quorum.voter_ids
    response: UpdateFeaturesResponse = await ask_controller(
        services,
        lambda controller, now, ticket: controller.update_features(asked, voters, now, ticket),
    )
    return response


async def _raise_quorum(
    services: Services, request: UpdateFeaturesRequest, wanted: FeatureUpdateKey
) -> None:
    quorum = services.quorum
    if not is_raised_quorum(quorum.kraft_version, wanted):
        return
    timeout_ms = request.timeout_ms or services.config.request_timeout_ms
    error, message = await quorum.changes.upgrade(timeout_ms, validate_only=request.validate_only)
    if error is not ErrorCode.NONE:
        raise error_of(error, message)


def error_response(request: UpdateFeaturesRequest, error: Exception) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code_of(error), error_message=str(error))
