"""EndTxn, versions 0 to 5 (KIP-98, 360, 890): commits or aborts a transaction.

The reply comes when the decision is committed; the markers follow. From version 5 on the reply has
the producer's id and epoch for its next transaction.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import ErrorCode
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

VERSION_WITH_FENCING: Final = 2


async def handle(
    services: Services, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse:
    reply: EndTxnResponse = await services.transactions.decide(
        request.transactional_id,
        lambda machine, fresh_id, now, ticket: machine.end(
            request, context.version, fresh_id, now, ticket
        ),
    )
    is_fenced = reply.error_code == ErrorCode.PRODUCER_FENCED
    if is_fenced and context.version < VERSION_WITH_FENCING:
        return EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
    return reply


def error_response(request: EndTxnRequest, error: Exception) -> EndTxnResponse:
    return EndTxnResponse(error_code=coordinator_code_of(error))
