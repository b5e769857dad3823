"""AddPartitionsToTxn, versions 0 to 5 (KIP-98, 360, 890).

Clients speak versions 0 to 3, of one transaction; brokers versions 4 and 5, of many, and may only
ask whether partitions are in their transactions. If one of a transaction's partitions does not
exist, none is added.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.coordinators.transaction_records import WITH_EPOCHS, WITHOUT_EPOCHS
from ottla.errors import ErrorCode, OttlaError
from ottla.types import TopicPartition
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

VERSION_OF_BROKERS: Final = 4
# Before it clients know only of epochs that are not valid.
VERSION_WITH_FENCING: Final = 2


async def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if context.version >= VERSION_OF_BROKERS:
        results = await asyncio.gather(
            *(_answer(services, each, WITH_EPOCHS) for each in request.transactions)
        )
        return AddPartitionsToTxnResponse(results_by_transaction=list(results))
    result = await _answer(services, _single(request), WITHOUT_EPOCHS)
    if context.version < VERSION_WITH_FENCING:
        for topic in result.topic_results:
            for each in topic.results_by_partition:
                if each.partition_error_code == ErrorCode.PRODUCER_FENCED:
                    each.partition_error_code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)


def _single(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


async def _answer(
    services: Services, asked: AddPartitionsToTxnTransaction, client_version: int
) -> AddPartitionsToTxnResult:
    partitions = [
        TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions
    ]
    identity = (asked.transactional_id, asked.producer_id, asked.producer_epoch)
    unknown = [each for each in partitions if not services.groups.has_partition(*each)]
    if unknown:
        codes = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
        codes |= dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _result(asked, codes)
    try:
        shard = services.transactions.shard_of(asked.transactional_id)
        if asked.verify_only:
            codes = await shard.read(lambda machine, now: machine.verify(*identity, partitions))
        else:
            code = await shard.submit(
                lambda machine, now, ticket: machine.add(
                    *identity, partitions, client_version, now, ticket
                )
            )
            codes = dict.fromkeys(partitions, code)
    except OttlaError as error:
        codes = dict.fromkeys(partitions, coordinator_code_of(error))
    return _result(asked, codes)


def _result(
    asked: AddPartitionsToTxnTransaction, codes: dict[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id,
        topic_results=[_topic_result(topic, codes) for topic in asked.topics],
    )


def _topic_result(
    topic: AddPartitionsToTxnTopic, codes: dict[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(index, codes[TopicPartition(topic.name, index)])
            for index in topic.partitions
        ],
    )


def error_response(
    request: AddPartitionsToTxnRequest, error: Exception
) -> AddPartitionsToTxnResponse:
    code = coordinator_code_of(error)
    single = _single(request)
    codes = {
        TopicPartition(topic.name, index): code
        for topic in single.topics
        for index in topic.partitions
    }
    return AddPartitionsToTxnResponse(
        error_code=code,
        results_by_topic_v3_and_below=[_topic_result(topic, codes) for topic in single.topics],
    )
