"""Fills topics, plainly and with what is awkward: raw batches say what clients would smooth out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from ottla.testing import Broker
from ottla.wire.compression import Compression
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    BatchHeader,
    Record,
    encode_batch,
    read_header,
    seal_batch,
)
from raw_client import RawClient
from records_kit import produce

TIMEOUT_S = 30.0
# Rows of an older day would fall to retention in the middle of a slow run.
NOW_MS = time.time_ns() // 1_000_000

Header = tuple[str, bytes | None]


def record(
    value: bytes | None,
    key: bytes | None = None,
    timestamp: int = NOW_MS,
    headers: Sequence[Header] = (),
) -> Record:
    """Its offset is given by its place in the batch, see `put`."""
    return Record(0, timestamp, key, value, headers)


def put(
    bootstrap: str,
    topic: str,
    *batches: Sequence[Record],
    partition: int = 0,
    compression: Compression = Compression.NONE,
) -> None:
    """Each sequence becomes one batch of the partition."""
    with RawClient(bootstrap) as client:
        for records in batches:
            placed = [one._replace(offset=at) for at, one in enumerate(records)]
            data = encode_batch(placed, compression=compression)
            reply = produce(client, topic, data, partition=partition)
            assert reply.error_code == 0, reply


def put_numbers(bootstrap: str, topic: str, numbers: Iterable[int], partitions: int = 1) -> None:
    """Number n is the value, as text, of a row in partition n modulo `partitions`."""
    per_partition: dict[int, list[Record]] = {}
    for number in numbers:
        row = record(b"%d" % number, b"key-%d" % (number % 7))
        per_partition.setdefault(number % partitions, []).append(row)
    for partition, rows in per_partition.items():
        put(bootstrap, topic, rows, partition=partition)


def awkward_records() -> list[Record]:
    """One of everything that a reader might get wrong."""
    return [
        record(b"plain", b"key"),
        record(None, b"tombstone"),
        record(b"no key", None),
        record(None, None),
        record(b"", b""),
        record(b"empty key", b""),
        record(b"no time", b"t", timestamp=-1),
        record(b"time zero", b"t", timestamp=0),
        record(b"earlier than the one before", b"t", timestamp=1),
        record(b"far future", b"t", timestamp=253_402_000_000_000),
        record(b"headers", b"h", headers=[("a", b"1"), ("b", None), ("a", b"2"), ("", b"")]),
        record(b"null header alone", b"h", headers=[("only", None)]),
        record(b"header name", b"h", headers=[("näme-Ω", b"\xff\x00")]),
        record(bytes(range(256)), bytes(range(255, -1, -1))),
        record(b"\x00" * 5000, b"long"),
    ]


def end_offset(bootstrap: str, topic: str, partition: int = 0) -> int:
    return offsets(bootstrap, topic, partition)[1]


def offsets(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """First and next offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tests"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
    finally:
        consumer.close()
    return low, high


def values_of(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """The values as numbers, in order, read by librdkafka."""
    count = sum(end_offset(bootstrap, topic, at) for at in range(partitions))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tests"})
    try:
        consumer.assign([TopicPartition(topic, at, 0) for at in range(partitions)])
        return sorted(int(one.value() or b"") for one in consumer.consume(count, TIMEOUT_S))
    finally:
        consumer.close()


def delete_before(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """What retention does, now."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, partition, offset)
    for future in admin.delete_records([place]).values():
        future.result(TIMEOUT_S)


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_partitions([NewPartitions(topic, total)]).values():
        future.result(TIMEOUT_S)


def append_to_log_file(broker: Broker, topic: str, batch: bytes | bytearray) -> None:
    """Adds a batch that no producer may send, as if a crash had come right after it was written."""
    end = read_header(batch).next_offset
    broker.kill()
    (path,) = Path(broker.data_dir, f"{topic}-0").glob("*.log")
    with path.open("ab") as file:
        file.write(batch)
    broker.start()
    assert end_offset(broker.bootstrap, topic) == end, "the broker did not take the batch for one"


def emptied_batch(base_offset: int, offset_count: int) -> bytearray:
    """What compaction leaves of a batch at the end of a segment: its offsets, no record."""
    header = _header(base_offset)
    size = {"batch_length": BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES, "count": 0}
    return seal_batch(header._replace(last_offset_delta=offset_count - 1, **size), b"")


def control_batch(base_offset: int) -> bytearray:
    """The mark that ends a transaction (here: aborted): it takes an offset and is no row."""
    mark = Record(base_offset, NOW_MS, b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00")
    return encode_batch(
        [mark], base_offset=base_offset, leader_epoch=0, producer_id=4711, producer_epoch=0,
        is_control=True, is_transactional=True,
    )  # fmt: skip


def _header(base_offset: int) -> BatchHeader:
    whole = encode_batch(
        [Record(base_offset, NOW_MS, b"", b"")], base_offset=base_offset, leader_epoch=0
    )
    return read_header(whole)
