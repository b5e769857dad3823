"""InitProducerId, versions 0 to 5 (KIP-98, 360, 588, 890): an identity for a producer.

An idempotent producer that names its earlier id and epoch gets a new id all the same, as in Kafka.
A transactional one fences those who had its id before. Left out: prepared transactions (KIP-939).
"""

from __future__ import annotations

from typing import Final

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.coordinators.transactions import init_refusal
from ottla.errors import ErrorCode, InvalidRequest
from ottla.types import NO_PRODUCER
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER_EPOCH: Final = -1
VERSION_WITH_FENCING: Final = 4


async def handle(
    services: Services, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest("Producer id and epoch come together.")
    if request.transactional_id is None:
        producer_id = await services.producer_ids.next()
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    if not request.transactional_id:
        raise InvalidRequest("The transactional id is empty.")
    reply: InitProducerIdResponse = await services.transactions.decide(
        request.transactional_id,
        lambda machine, fresh_id, now, ticket: machine.init(request, fresh_id, now, ticket),
    )
    is_fenced = reply.error_code == ErrorCode.PRODUCER_FENCED
    if is_fenced and context.version < VERSION_WITH_FENCING:
        return init_refusal(ErrorCode.INVALID_PRODUCER_EPOCH)
    return reply


def error_response(request: InitProducerIdRequest, error: Exception) -> InitProducerIdResponse:
    return init_refusal(coordinator_code_of(error))
