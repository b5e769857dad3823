"""FindCoordinator, versions 0 to 6 (KIP-98, 699, 932's key type).

The first look-up of a group creates `__consumer_offsets`, that of a transactional id
`__transaction_state`, and waits for it, where Kafka makes the client ask again. Share groups (type
2) do not exist yet: they get an error that clients do not retry. A success has no message, as the
protocol defines it, where Kafka says "NONE".
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import IntEnum
from typing import Any, Final

from ottla.broker.control.shards import ShardService, coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.cluster.image import Endpoint
from ottla.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    OttlaError,
)
from ottla.types import NO_NODE
from ottla.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

VERSION_WITH_KEYS: Final = 4


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    has_keys = context.version >= VERSION_WITH_KEYS
    keys = request.coordinator_keys if has_keys else [request.key]
    service = _service(services, request.key_type)
    if service is not None and not all(service.is_ready(key) for key in keys):
        return _wait_and_answer(services, service, context, request, keys)
    return _answer(services, context, request, keys)


def _service(services: Services, key_type: int) -> ShardService[Any] | None:
    if key_type == KeyType.GROUP:
        return services.groups
    return services.transactions if key_type == KeyType.TRANSACTION else None


async def _wait_and_answer(
    services: Services,
    service: ShardService[Any],
    context: RequestContext,
    request: FindCoordinatorRequest,
    keys: list[str],
) -> FindCoordinatorResponse:
    for key in keys:
        await service.make_ready(key)
    return _answer(services, context, request, keys)


def _answer(
    services: Services, context: RequestContext, request: FindCoordinatorRequest, keys: list[str]
) -> FindCoordinatorResponse:
    found = [_coordinator(services, context, request.key_type, key) for key in keys]
    if context.version >= VERSION_WITH_KEYS:
        return FindCoordinatorResponse(coordinators=found)
    return _single(found[0])


def _coordinator(
    services: Services, context: RequestContext, key_type: int, key: str
) -> Coordinator:
    try:
        node_id, endpoint = _find(services, context.listener, key_type, key)
    except OttlaError as error:
        return _not_found(key, error)
    return Coordinator(
        key=key, node_id=node_id, host=endpoint.host, port=endpoint.port, error_message=None
    )


def _find(services: Services, listener: str, key_type: int, key: str) -> tuple[int, Endpoint]:
    service = _service(services, key_type)
    if service is None:
        raise InvalidRequest(f"There are no coordinators of type {key_type}.")
    metadata = services.metadata
    leader = metadata.leader_of(service.topic, service.partition_of(key))
    for broker in metadata.brokers():
        is_absent = broker.id == metadata.absent_leader
        if broker.id == leader and listener in broker.endpoints and not is_absent:
            return leader, broker.endpoints[listener]
    raise CoordinatorNotAvailable(f"The coordinator of {key} has no leader.")


def _not_found(key: str, error: Exception) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=NO_NODE,
        port=-1,
        error_code=coordinator_code_of(error),
        error_message=str(error),
    )


def _single(found: Coordinator) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def error_response(request: FindCoordinatorRequest, error: Exception) -> FindCoordinatorResponse:
    response = _single(_not_found(request.key, error))
    response.coordinators = [_not_found(key, error) for key in request.coordinator_keys]
    return response
