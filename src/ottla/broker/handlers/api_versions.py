"""ApiVersions, versions 0 to 4 (KIP-35, 511, 584).

A version that is too new gets error 35 and the versions of this API, in the form of version 0, and
the client asks again. Of features there are `metadata.version`, `transaction.version` and
`kraft.version`; `group.version` is not listed as long as there is nothing behind it. APIs that only
nodes speak with each other are listed to nodes only.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.broker.network.router import APIS, ApiKey, apis_on
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.cluster.features import KRAFT_VERSION, KRAFT_VERSIONS, SUPPORTED
from ottla.errors import InvalidRequest, UnsupportedVersion, code_of
from ottla.types import NODE_SOFTWARE
from ottla.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

NAMED_CLIENT_VERSION: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(
    services: Services, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    own = APIS[ApiKey.API_VERSIONS]
    if not own.first <= context.version <= own.last:
        return ApiVersionsResponse(
            error_code=code_of(UnsupportedVersion()),
            api_keys=[ApiVersion(own.key, own.first, own.last)],
        )
    if context.version >= NAMED_CLIENT_VERSION and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=code_of(InvalidRequest()))
    is_node = request.client_software_name == NODE_SOFTWARE
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api.key, api.first, api.last)
            for api in apis_on(services.config, context.listener).values()
            if is_node or not api.for_nodes
        ],
        supported_features=[
            SupportedFeatureKey(name, *levels)
            for name, levels in (*SUPPORTED.items(), (KRAFT_VERSION, KRAFT_VERSIONS))
        ],
        # As in Kafka, where the metadata stand that say so.
        finalized_features_epoch=services.controller.partition.high_watermark.offset - 1,
        finalized_features=[
            FinalizedFeatureKey(name, level, level)
            for name, level in sorted(_finalized(services).items())
        ],
    )


def _finalized(services: Services) -> dict[str, int]:
    """As in Kafka, a level of 0 is not told."""
    levels = services.metadata.image.features | {KRAFT_VERSION: services.quorum.kraft_version}
    return {name: level for name, level in levels.items() if level}
