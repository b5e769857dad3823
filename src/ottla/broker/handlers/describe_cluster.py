"""DescribeCluster, versions 0 to 2 (KIP-700, 919, 1073): a cluster with its brokers or controllers.

Brokers are described where clients are served, controllers where controllers are; a listener that
serves one kind refuses to describe the other, as Kafka's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.broker.network.operations import ALL_CLUSTER_OPERATIONS, NOT_ASKED
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import ErrorCode, code_of
from ottla.types import NO_NODE
from ottla.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS: Final = 1
CONTROLLERS: Final = 2
_NAMES: Final = {BROKERS: "brokers", CONTROLLERS: "controllers"}


def handle(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    wanted = request.endpoint_type
    if wanted not in _NAMES:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"There is no endpoint type {wanted}.",
        )
    if wanted not in _served(services, context.listener):
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message=f"This listener is not that of {_NAMES[wanted]}; ask one that is.",
            endpoint_type=wanted,
        )
    find = _brokers if wanted == BROKERS else _controllers
    found = list(find(services, context.listener, request))
    leader = services.node_id if wanted == BROKERS else services.leadership.leader_id
    asks_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        endpoint_type=wanted,
        cluster_id=services.cluster_id,
        controller_id=leader if any(node.broker_id == leader for node in found) else NO_NODE,
        brokers=found,
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if asks_operations else NOT_ASKED,
    )


def _served(services: Services, listener: str) -> set[int]:
    config = services.config
    if config.controller_listeners():
        return {CONTROLLERS if listener in config.controller_names else BROKERS}
    return {BROKERS, CONTROLLERS} if config.is_controller else {BROKERS}


def _brokers(
    services: Services, listener: str, request: DescribeClusterRequest
) -> Iterator[DescribeClusterBroker]:
    for _, broker in sorted(services.metadata.image.brokers.items()):
        endpoint = broker.endpoints.get(listener)
        if endpoint is not None and (request.include_fenced_brokers or not broker.is_fenced):
            yield DescribeClusterBroker(
                broker_id=broker.id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.is_fenced,
            )


def _controllers(
    services: Services, listener: str, request: DescribeClusterRequest
) -> Iterator[DescribeClusterBroker]:
    for _, controller in sorted(services.metadata.image.controllers.items()):
        endpoint = controller.endpoints.get(listener)
        if endpoint is not None:
            yield DescribeClusterBroker(
                broker_id=controller.id, host=endpoint.host, port=endpoint.port
            )


def error_response(request: DescribeClusterRequest, error: Exception) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code_of(error), error_message=str(error))
