"""Which topics the pipeline's brokers have, asked with little patience."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ottla.client.blocking import Blocking
from ottla.client.failures import GaveUp, Unreachable
from ottla.client.settings import ClientSettings
from ottla.pipelines.language.model import Pipeline
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

PATIENCE_S: Final = 5.0
# The kind of resource that a broker is in DescribeConfigs.
BROKER: Final = 4
AUTO_CREATE: Final = "auto.create.topics.enable"


@dataclass(frozen=True)
class BrokerTopics(Mapping[str, int]):
    """The partitions of each topic, and whether a topic is made when somebody writes to it."""

    partitions: Mapping[str, int]
    creates_topics: bool = False

    def __getitem__(self, topic: str) -> int:
        return self.partitions[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)


def broker_topics(pipeline: Pipeline) -> BrokerTopics | None:
    """None when no broker answers; raises OttlaError for a wrong login or setting."""
    settings = replace(
        ClientSettings.from_kafka({"bootstrap.servers": pipeline.bootstrap, **pipeline.kafka}),
        connect_timeout_s=PATIENCE_S / 2,
        request_timeout_s=PATIENCE_S / 2,
        retry_timeout_s=PATIENCE_S / 2,
    )
    try:
        with Blocking(settings) as client:
            return client.run(_ask, 2 * PATIENCE_S)
    except (Unreachable, GaveUp):
        return None


async def _ask(cluster: Cluster) -> BrokerTopics:
    found = await cluster.topics()
    partitions = {name: len(info.partitions) for name, info in found.items()}
    return BrokerTopics(partitions, await _creates_topics(cluster))


async def _creates_topics(cluster: Cluster) -> bool:
    """As one of the brokers says; one that does not tell its settings is taken to create none."""
    node = next(iter(cluster.image.addresses), None)
    if node is None:
        return False
    connection = await cluster.to_node(node)
    resource = DescribeConfigsResource(BROKER, str(node), [AUTO_CREATE])
    request = DescribeConfigsRequest(resources=[resource])
    reply = await connection.ask(request, DescribeConfigsResponse)
    return any(one.value == "true" for result in reply.results for one in result.configs)
