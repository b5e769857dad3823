"""TxnOffsetCommit, versions 0 to 5 (KIP-98, 320, 447, 890): positions that a transaction commits.

They count when the transaction does. Before the first of them is written, the transaction's
coordinator is asked whether it knows that the group takes part; with version 5 it is told. From
version 3 on the group fences by member and generation (KIP-447).
"""

from __future__ import annotations

from typing import Final

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.handlers.verifying import Beginning, settle
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import ErrorCode
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

NO_SEQUENCE: Final = -1
ONLY: Final = 0
FIRST_ADDING: Final = 5
FIRST_WITH_ABORTABLE: Final = 4

# Where the transaction's coordinator cannot say yet, clients are to ask this one again.
_PASSING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


async def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    shard = services.groups.shard_of(request.group_id)
    found, codes = await settle(
        services,
        request.transactional_id,
        (request.producer_id, request.producer_epoch),
        {ONLY: Beginning(shard.partition, NO_SEQUENCE)},
        is_added=context.version >= FIRST_ADDING,
    )
    code = _told(codes.get(ONLY, ErrorCode.NONE), context.version)
    if code is not ErrorCode.NONE:
        return _refused(request, code)
    verification = found.get(ONLY)
    exists = services.groups.has_partition
    response: TxnOffsetCommitResponse = await shard.submit(
        lambda machine, now, ticket: machine.commit_in_transaction(
            request, verification, exists, now, ticket
        )
    )
    return response


def _told(code: ErrorCode, version: int) -> ErrorCode:
    if code in _PASSING:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _refused(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    TxnOffsetCommitResponsePartition(partition.partition_index, code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def error_response(request: TxnOffsetCommitRequest, error: Exception) -> TxnOffsetCommitResponse:
    return _refused(request, coordinator_code_of(error))
