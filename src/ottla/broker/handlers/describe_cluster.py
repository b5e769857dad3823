"""DescribeCluster, versions 0 to 2 (KIP-700, 919, 1073): the cluster id and its brokers.

Only brokers are described here: this listener is a broker's, and a request for controllers gets
the error that Kafka's brokers give.
"""

from __future__ import annotations

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


def handle(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="This listener belongs to a broker; controllers are not described here.",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"There is no endpoint type {request.endpoint_type}.",
        )
    brokers = [
        DescribeClusterBroker(
            broker_id=broker.id,
            host=endpoint.host,
            port=endpoint.port,
            rack=broker.rack,
            is_fenced=broker.is_fenced,
        )
        for _, broker in sorted(services.metadata.image.brokers.items())
        if (request.include_fenced_brokers or not broker.is_fenced)
        and (endpoint := broker.endpoints.get(context.listener)) is not None
    ]
    is_listed = any(broker.broker_id == services.node_id for broker in brokers)
    asks_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=services.node_id if is_listed else NO_NODE,
        brokers=brokers,
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if asks_operations else NOT_ASKED,
    )


def error_response(request: DescribeClusterRequest, error: Exception) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code_of(error), error_message=str(error))
