"""DescribeProducers, version 0 (KIP-664): the producers that a partition knows.

At most 10,000 of a partition are told, those with an open transaction first. The last timestamp is
when the broker took the last batch, or what the client wrote into it if that is later.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import OttlaError, code_of
from ottla.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

PRODUCERS_MAX: Final = 10_000


def handle(
    services: Services, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    response = DescribeProducersResponse()
    for topic in request.topics:
        answers = [_describe(services, topic.name, index) for index in topic.partition_indexes]
        response.topics.append(TopicResponse(topic.name, answers))
    return response


def _describe(services: Services, topic: str, index: int) -> PartitionResponse:
    answer = PartitionResponse(index)
    try:
        partition = services.partitions.get(topic, index)
        partition.check_leader()
    except OttlaError as error:
        answer.error_code, answer.error_message = code_of(error), str(error)
        return answer
    for producer_id, producer in partition.producers(PRODUCERS_MAX):
        answer.active_producers.append(
            ProducerState(
                producer_id,
                producer.epoch,
                producer.spans[-1].last_sequence if producer.spans else -1,
                producer.last_seen_ms,
                producer.coordinator_epoch,
                producer.transaction_start,
            )
        )
    return answer
