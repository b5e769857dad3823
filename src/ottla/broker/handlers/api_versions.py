"""ApiVersions, versions 0 to 4 (KIP-35, KIP-511).

A version that is too new gets error 35 and the versions of this API, in the form of version 0, and
the client asks again. No features are listed: none is finalized as long as there is no cluster-wide
feature level to agree on.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.broker.router import APIS, ApiKey
from ottla.broker.services import RequestContext, Services
from ottla.errors import InvalidRequest, UnsupportedVersion, code_of
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

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
    return ApiVersionsResponse(
        api_keys=[ApiVersion(api.key, api.first, api.last) for api in APIS.values()]
    )
