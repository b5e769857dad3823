"""Before a transaction begins in a partition, its coordinator is asked (KIP-890).

Clients with an epoch for each transaction say nothing before they produce: their partitions are
added by that. Of others it is asked whether they have said so. The partition gives out a
`Verification` before the question and wants it back with the batch: should a marker have ended the
transaction meanwhile, that is worth nothing any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.errors import (
    CorruptBatch,
    ErrorCode,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    NotEnoughReplicas,
    OttlaError,
    TransactionAbortable,
    error_of,
)
from ottla.types import TopicPartition
from ottla.wire.records import read_header

if TYPE_CHECKING:
    from ottla.broker.services import Services
    from ottla.broker.storage.partition import Partition
    from ottla.log.verification import Verification
    from ottla.wire.messages.produce import ProduceRequest

FIRST_ADDING_BY_PRODUCE: Final = 12
FIRST_WITH_ABORTABLE: Final = 11
# The transaction before may still get its markers: that takes no longer than a few syncs.
RETRY_PAUSE_S: Final = 0.01
RETRY_S_MAX: Final = 0.2

# Clients of any age try again on NOT_ENOUGH_REPLICAS, and look nothing up before; as Kafka has it.
_PASSING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


class Verified(NamedTuple):
    """Of the batches of a request, by the identity of each: what to append it with, or why not."""

    verifications: Mapping[int, Verification]
    refusals: Mapping[int, OttlaError]


ALL_VERIFIED: Final = Verified({}, {})


class Beginning(NamedTuple):
    """Where a transaction may begin, and with which sequence."""

    partition: Partition
    sequence: int


async def verify(services: Services, request: ProduceRequest, version: int) -> Verified:
    """Asks about those partitions in which the transaction has not begun."""
    assert request.transactional_id is not None
    beginnings: dict[int, Beginning] = {}
    producers: set[tuple[int, int]] = set()
    for topic in request.topic_data:
        partitions = services.partitions.in_topic(topic.name) or {}
        for data in topic.partition_data:
            partition = partitions.get(data.index)
            try:
                header = read_header(data.records or b"")
            except CorruptBatch:
                continue
            if partition is None or not header.is_transactional or not partition.is_leader:
                continue
            producers.add((header.producer_id, header.producer_epoch))
            beginnings[id(data)] = Beginning(partition, header.base_sequence)
    if not beginnings:
        return ALL_VERIFIED
    if len(producers) > 1:
        mixed = InvalidProducerIdMapping("a request has batches of several producers")
        return Verified({}, dict.fromkeys(beginnings, mixed))
    found, codes = await settle(
        services,
        request.transactional_id,
        producers.pop(),
        beginnings,
        is_added=version >= FIRST_ADDING_BY_PRODUCE,
    )
    has_abortable = version >= FIRST_WITH_ABORTABLE
    refusals = {
        key: refusal_of(code, beginnings[key].partition.name, has_abortable=has_abortable)
        for key, code in codes.items()
        if code is not ErrorCode.NONE
    }
    return Verified(found, refusals)


async def settle(
    services: Services,
    name: str,
    producer: tuple[int, int],
    beginnings: Mapping[int, Beginning],
    *,
    is_added: bool,
) -> tuple[dict[int, Verification], dict[int, ErrorCode]]:
    """What to append each with, and what the coordinator said of those that it was asked about.

    While it is asked, the transaction before may get its marker, and then the answer is about that:
    it is asked again. So it is, for a while, where that transaction is not over.
    """
    loop, now_ms = services.loop, services.clock.wall_ms()
    until_s = loop.time() + RETRY_S_MAX
    while True:
        found: dict[int, Verification] = {}
        asked: dict[int, TopicPartition] = {}
        for key, (partition, sequence) in beginnings.items():
            begun = partition.begin_verification(*producer, sequence, now_ms)
            if begun is not None:
                found[key] = begun
            elif not is_added or partition.has_open_transaction(*producer):
                continue
            asked[key] = partition.name
        if not asked:
            return found, {}
        verdicts = await services.transactions.partitions.ask(
            name, *producer, asked.values(), verify_only=not is_added
        )
        codes = {
            key: verdicts.get(place, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            for key, place in asked.items()
        }
        is_before_its_time = ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
        is_overtaken = any(
            beginnings[key].partition.begin_verification(
                *producer, beginnings[key].sequence, now_ms
            )
            not in (None, verification)
            for key, verification in found.items()
        )
        if not (is_before_its_time or is_overtaken):
            return found, codes
        if loop.time() >= until_s:
            # An answer that came too late is none: the client asks again.
            return {}, dict.fromkeys(asked, ErrorCode.CONCURRENT_TRANSACTIONS)
        if is_before_its_time:
            await asyncio.sleep(RETRY_PAUSE_S)


def refusal_of(code: ErrorCode, partition: TopicPartition, *, has_abortable: bool) -> OttlaError:
    """What a producer is told where the coordinator has said no."""
    if code in _PASSING:
        return NotEnoughReplicas(f"{partition}: the transaction cannot begin yet: {code.name}")
    if code is ErrorCode.PRODUCER_FENCED:
        return InvalidProducerEpoch(f"{partition}: a newer producer has the transactional id")
    if code is ErrorCode.TRANSACTION_ABORTABLE:
        kind = TransactionAbortable if has_abortable else InvalidTransactionState
        return kind(f"{partition} was not added to the transaction")
    return error_of(code, f"{partition}: the coordinator says {code.name}")
