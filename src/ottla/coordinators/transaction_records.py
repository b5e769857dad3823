"""The records of `__transaction_state` and their bytes, as Kafka 4 writes them."""

from __future__ import annotations

import struct
from itertools import groupby
from typing import Final, NamedTuple

from ottla.coordinators.transaction_states import TransactionState
from ottla.errors import UnsupportedVersion
from ottla.types import NO_PRODUCER, TopicPartition
from ottla.wire.codec import MalformedMessage, decode, encode
from ottla.wire.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
NO_PRODUCER_EPOCH: Final = -1
NO_TIME: Final = -1
# The client's own: whether it gets another epoch with each transaction.
WITHOUT_EPOCHS: Final = 0
WITH_EPOCHS: Final = 2

_VERSION: Final = struct.Struct(">h")
_NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()


class Transaction(NamedTuple):
    """What is known of a transactional id: its producer, and its last transaction."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = _NO_PARTITIONS
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    client_version: int = WITHOUT_EPOCHS
    # Of the producer's last request for an epoch; not written, so that a new coordinator does not
    # know a repetition of that request, as in Kafka.
    last_epoch: int = NO_PRODUCER_EPOCH


class TransactionRecord(NamedTuple):
    """A transactional id's state; None forgets the id."""

    transactional_id: str
    transaction: Transaction | None


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    key = TransactionLogKey(transactional_id=record.transactional_id)
    key_bytes = _VERSION.pack(KEY_VERSION) + encode(key, KEY_VERSION)
    found = record.transaction
    if found is None:
        return key_bytes, None
    value = TransactionLogValue(
        producer_id=found.producer_id,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        producer_epoch=found.epoch,
        transaction_timeout_ms=found.timeout_ms,
        transaction_status=found.state,
        transaction_partitions=(
            None
            if found.state is TransactionState.EMPTY
            else [PartitionsSchema(*topic) for topic in by_topic(found.partitions)]
        ),
        transaction_last_update_timestamp_ms=found.updated_ms,
        transaction_start_timestamp_ms=found.started_ms,
        client_transaction_version=found.client_version,
    )
    return key_bytes, _VERSION.pack(VALUE_VERSION) + encode(value, VALUE_VERSION)


def by_topic(partitions: frozenset[TopicPartition]) -> list[tuple[str, list[int]]]:
    ordered = sorted(partitions)
    return [
        (topic, [each.partition for each in found])
        for topic, found in groupby(ordered, key=lambda each: each.topic)
    ]


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """None for keys of another kind.

    MalformedMessage for bytes that are no record, UnsupportedVersion for a value of a newer one.
    """
    if key is None:
        raise MalformedMessage("a transaction's record without a key")
    try:
        (key_version,) = _VERSION.unpack_from(key)
        if key_version != KEY_VERSION:
            return None
        name = decode(TransactionLogKey, key, key_version, _VERSION.size).transactional_id
        if value is None:
            return TransactionRecord(name, None)
        (version,) = _VERSION.unpack_from(value)
        if version not in TransactionLogValue.VERSIONS:
            raise UnsupportedVersion(f"TransactionLogValue version {version} is not known here")
        read = decode(TransactionLogValue, value, version, _VERSION.size)
        state = TransactionState(read.transaction_status)
    except (struct.error, ValueError) as error:
        raise MalformedMessage(f"a transaction's record cannot be read: {error}") from None
    partitions = frozenset(
        TopicPartition(topic.topic, index)
        for topic in read.transaction_partitions or ()
        for index in topic.partition_ids
    )
    return TransactionRecord(
        name,
        Transaction(
            producer_id=read.producer_id,
            epoch=read.producer_epoch,
            timeout_ms=read.transaction_timeout_ms,
            state=state,
            partitions=partitions,
            started_ms=read.transaction_start_timestamp_ms,
            updated_ms=read.transaction_last_update_timestamp_ms,
            previous_producer_id=read.previous_producer_id,
            next_producer_id=read.next_producer_id,
            client_version=read.client_transaction_version,
        ),
    )
