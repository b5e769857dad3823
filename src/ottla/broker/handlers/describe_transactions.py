"""DescribeTransactions, version 0 (KIP-664): what this coordinator knows of transactional ids."""

from __future__ import annotations

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.control.transactions import TransactionShard
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import OttlaError
from ottla.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)


async def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    found, failures = services.transactions.by_shard(request.transactional_ids)
    states = [_failed(name, error) for name, error in failures.items()]
    for shard, names in found.items():
        states += await _described(shard, names)
    return DescribeTransactionsResponse(transaction_states=states)


async def _described(shard: TransactionShard, names: list[str]) -> list[TransactionState]:
    try:
        return await shard.read(lambda machine, now: [machine.describe(name) for name in names])
    except OttlaError as error:
        return [_failed(name, error) for name in names]


def _failed(name: str, error: Exception) -> TransactionState:
    return TransactionState(error_code=coordinator_code_of(error), transactional_id=name)


def error_response(
    request: DescribeTransactionsRequest, error: Exception
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_failed(name, error) for name in request.transactional_ids]
    )
