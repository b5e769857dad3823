"""DescribeConfigs, versions 1 to 4 (KIP-226, 569): settings of topics and of this broker.

The broker with the empty name stands for what is set for all brokers. Settings of groups, client
metrics and loggers are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.cluster.configs import (
    BrokerLayers,
    DescribedSetting,
    describe_broker,
    describe_cluster_defaults,
    describe_topic,
)
from ottla.cluster.image import ResourceType
from ottla.cluster.names import check_topic_name
from ottla.errors import InvalidRequest, OttlaError, code_of
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(
    services: Services, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_result(services, request, resource) for resource in request.resources]
    )


def _result(
    services: Services, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    try:
        described = _describe(services, resource)
    except OttlaError as error:
        return _failed(resource, error)
    wanted = set(resource.configuration_keys or ())
    return DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            _entry(request, found)
            for found in described
            if not wanted or found.setting.name in wanted
        ],
    )


def _describe(services: Services, resource: DescribeConfigsResource) -> Sequence[DescribedSetting]:
    image = services.metadata.image
    layers = BrokerLayers.of(services.config, image)
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        return describe_topic(layers, image.topic_configs(services.metadata.topic(name).name), name)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            return describe_cluster_defaults(layers)
        if name != str(services.node_id):
            raise InvalidRequest(f"This is broker {services.node_id}; ask broker {name} itself.")
        broker = image.brokers.get(services.node_id)
        return describe_broker(layers if broker is None else layers.advertising(broker))
    raise InvalidRequest(f"Settings of resource type {resource.resource_type} are not supported.")


def _entry(
    request: DescribeConfigsRequest, described: DescribedSetting
) -> DescribeConfigsResourceResult:
    setting = described.setting
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=described.value,
        read_only=described.is_read_only,
        config_source=described.source,
        is_sensitive=False,
        synonyms=[
            DescribeConfigsSynonym(name=layer.name, value=layer.value, source=layer.source)
            for layer in described.layers
        ]
        if request.include_synonyms
        else [],
        config_type=setting.kind,
        documentation=setting.doc if request.include_documentation else None,
    )


def _failed(resource: DescribeConfigsResource, error: Exception) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code_of(error),
        error_message=str(error),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def error_response(request: DescribeConfigsRequest, error: Exception) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_failed(resource, error) for resource in request.resources]
    )
