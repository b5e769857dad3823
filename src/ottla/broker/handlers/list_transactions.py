"""ListTransactions, versions 0 and 1 (KIP-664, 994): the transactional ids coordinated here.

Left out: version 2, whose pattern a client could choose so that matching it stops the broker.
"""

from __future__ import annotations

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.coordinators.transaction_states import TransactionState as State
from ottla.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


async def handle(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    known = {state.title for state in State}
    wanted = [name for name in request.state_filters if name in known]
    unknown = [name for name in request.state_filters if name not in known]
    if request.state_filters and not wanted:
        return ListTransactionsResponse(unknown_state_filters=unknown)
    found: list[TransactionState] = []
    for shard in services.transactions.shards():
        found += await shard.read(
            lambda machine, now: machine.list_transactions(
                wanted, request.producer_id_filters, request.duration_filter, now
            )
        )
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)


def error_response(request: ListTransactionsRequest, error: Exception) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=coordinator_code_of(error))
