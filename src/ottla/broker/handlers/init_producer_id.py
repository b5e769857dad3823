"""InitProducerId, versions 0 to 5 (KIP-98, 360): an identity for an idempotent producer.

A producer that names its earlier id and epoch gets a new id all the same, as in Kafka. There are
no transactions yet: a transactional id gets an error that the client does not retry.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import InvalidRequest, TransactionsNotSupported, code_of
from ottla.types import NO_PRODUCER
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER_EPOCH: Final = -1


async def handle(
    services: Services, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        if not request.transactional_id:
            raise InvalidRequest("The transactional id is empty.")
        raise TransactionsNotSupported("There are no transactions yet.")
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest("Producer id and epoch come together.")
    producer_id = await services.producer_ids.next()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def error_response(request: InitProducerIdRequest, error: Exception) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=code_of(error), producer_id=NO_PRODUCER, producer_epoch=NO_PRODUCER_EPOCH
    )
