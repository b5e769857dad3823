"""The records of `__transaction_state`. Keys and values start with their version as an int16."""

from ottla.wire.schema import INT8, INT16, INT32, INT64, STRING, Array, Message, Struct, field


class TransactionLogKey(Message, versions="0", flexible="none"):
    transactional_id: str = field(STRING)


class PartitionsSchema(Struct):
    topic: str = field(STRING)
    partition_ids: list[int] = field(Array(INT32))


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    producer_id: int = field(INT64)
    previous_producer_id: int = field(INT64, "1+", default=-1, tag=0, tagged="1+")
    next_producer_id: int = field(INT64, "1+", default=-1, tag=1, tagged="1+")
    producer_epoch: int = field(INT16)
    transaction_timeout_ms: int = field(INT32)
    transaction_status: int = field(INT8)
    transaction_partitions: list[PartitionsSchema] | None = field(
        Array(PartitionsSchema), nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = field(INT64)
    transaction_start_timestamp_ms: int = field(INT64)
    client_transaction_version: int = field(INT16, "1+", default=0, tag=2, tagged="1+")
