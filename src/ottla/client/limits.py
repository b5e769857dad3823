"""What a topic takes: asked for when something was too large for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

TOPIC: Final = 2
MAX_MESSAGE_BYTES: Final = "max.message.bytes"


async def batch_bytes_max(cluster: Cluster, topic: str) -> int | None:
    """The topic's max.message.bytes; None where the brokers do not tell it to this user."""
    wanted = DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=[MAX_MESSAGE_BYTES]
    )
    answer = await cluster.ask_any(
        DescribeConfigsRequest(resources=[wanted]), DescribeConfigsResponse
    )
    values = (one.value for result in answer.results for one in result.configs)
    return next((int(value) for value in values if value is not None and value.isdigit()), None)
