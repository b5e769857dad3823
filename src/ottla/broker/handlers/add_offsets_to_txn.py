"""AddOffsetsToTxn, versions 0 to 4 (KIP-98, 360, 890): the group's positions join a transaction.

Clients of KIP-890's second part do without: TxnOffsetCommit version 5 adds them by itself.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.coordinators.transaction_records import WITHOUT_EPOCHS
from ottla.errors import ErrorCode
from ottla.types import OFFSETS_TOPIC, TopicPartition
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

VERSION_WITH_FENCING: Final = 2


async def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    if not request.group_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    await services.groups.make_ready(request.group_id)
    partition = TopicPartition(OFFSETS_TOPIC, services.groups.partition_of(request.group_id))
    code = await services.transactions.shard_of(request.transactional_id).submit(
        lambda machine, now, ticket: machine.add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            (partition,),
            WITHOUT_EPOCHS,
            now,
            ticket,
        )
    )
    if code is ErrorCode.PRODUCER_FENCED and context.version < VERSION_WITH_FENCING:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=code)


def error_response(request: AddOffsetsToTxnRequest, error: Exception) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=coordinator_code_of(error))
