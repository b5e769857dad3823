"""What a log knows about the producers that write to it.

Per producer: its epoch, and sequences and offsets of its last five batches, because a client may
have five requests under way and repeat any of them.

A `.snapshot` file holds the state at the offset it is named by, in Kafka's version 1:

    int16 version, uint32 CRC-32C of what follows, int32 count, then per entry
    int64 producer id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta,
    int64 timestamp, int32 coordinator epoch, int64 first offset of the open transaction or -1

Kafka writes one entry per producer and so forgets four batches at a restart. Here each batch of
the window is an entry, the oldest first: Kafka's reader keeps the last one of an id.

A producer that is not known may begin with any sequence, since retention may have taken its past.
Not so when its first batch was refused: those in flight after it would be appended without it, and
the client, told that a later one is stored, takes it for stored, too. So a refused first batch is
awaited. That is soft state: whoever connects anew sends the missing batch first.

A transactional batch opens its producer's transaction, a marker (`markers.py`) ends it. In between
the producer writes nothing outside of it. A marker is refused that comes from an earlier
coordinator or names an earlier epoch; by the second version of transactions (KIP-890) each ends
with an epoch of its own, so that a late marker of the transaction before cannot end this one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from ottla.errors import (
    CorruptBatch,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from ottla.log.aborted import AbortedTransaction
from ottla.log.markers import ABORT, OTHER, Marker, read_marker
from ottla.log.open_transactions import OpenTransactions
from ottla.log.values import LogPosition
from ottla.log.verification import Verification, Verifications
from ottla.wire.checksum import crc32c
from ottla.wire.records import CONTROL_BIT, SEQUENCE_MAX, TRANSACTIONAL_BIT, BatchHeader
from ottla.wire.schema import Buffer

WINDOW_BATCHES: Final = 5
SNAPSHOT_VERSION: Final = 1
NO_TRANSACTION: Final = -1
# From this version of transactions on a marker's epoch is larger than that of what it ends.
EPOCH_PER_TRANSACTION: Final = 2
# Where more are awaited than can be remembered, whoever is not known has to begin at zero.
AWAITED_MAX: Final = 1000

_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_FROM: Final = 6
EMPTY_SNAPSHOT_BYTES: Final = _HEAD.size

_NO_MARKER: Final = Marker(OTHER)

# Half the price of calling the class, and this is the path of every idempotent batch.
_new_tuple: Final = tuple.__new__


class CorruptSnapshot(Exception):
    """A snapshot file that cannot be believed; the state is replayed from the batches instead."""


class BatchSpan(NamedTuple):
    """The sequences and offsets of one batch, ends included."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Producer(NamedTuple):
    epoch: int
    spans: tuple[BatchSpan, ...]
    last_seen_ms: int
    coordinator_epoch: int = -1
    transaction_start: int = NO_TRANSACTION


class Awaited(NamedTuple):
    """The first batch of a producer that is not known: it was refused, and has to come again."""

    epoch: int
    sequence: int
    since_ms: int


class ProducerState:
    """Changes are provisional until `keep`; `undo` takes them back."""

    __slots__ = (
        "_awaited",
        "_journal",
        "_overflow_ms",
        "_producers",
        "_verifications",
        "transactions",
    )

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self.transactions = OpenTransactions()
        self._journal: list[tuple[int, Producer | None]] = []
        self._awaited: dict[int, Awaited] = {}
        self._verifications = Verifications()
        # When a refused batch last could not be remembered.
        self._overflow_ms: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerState) and self._producers == other._producers

    __hash__ = None  # type: ignore[assignment]

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def last_data(self) -> dict[int, tuple[int, int]]:
        """Of each producer: the last offset of its data, -1 if there is none, and its epoch."""
        return {
            producer_id: (producer.spans[-1].last_offset if producer.spans else -1, producer.epoch)
            for producer_id, producer in self._producers.items()
        }

    def check(self, header: BatchHeader, is_own: bool = False) -> BatchSpan | None:
        """None when the batch comes next; where the first one is when it is a repetition.

        Of what `is_own`, written by a coordinator for a producer, only the epoch counts.
        """
        sequence = header.base_sequence
        if sequence < 0:
            if not is_own:
                raise InvalidRecord(f"producer {header.producer_id} sent no sequence")
            self._check_own(header)
            return None
        known = self._producers.get(header.producer_id)
        if known is None:
            if self._awaited or self._overflow_ms is not None:
                self._check_awaited(header)
            return None
        if header.producer_epoch != known.epoch:
            _check_new_epoch(header, known.epoch)
            _check_within(header, known)
            return None
        spans = known.spans
        last = spans[-1].last_sequence if spans else -1
        if sequence == (last + 1) & SEQUENCE_MAX:
            if known.transaction_start != NO_TRANSACTION:
                _check_within(header, known)
            return None
        last_sequence = header.last_sequence
        for span in spans:
            if span.first_sequence == sequence and span.last_sequence == last_sequence:
                return span
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {sequence} after {last}"
        )

    def _check_own(self, header: BatchHeader) -> None:
        known = self._producers.get(header.producer_id)
        if known is not None:
            _check_epoch(header, known.epoch)
            _check_within(header, known)

    def check_marker(self, header: BatchHeader, marker: Marker, version: int) -> bool:
        """Whether it belongs into the log; False when it is there already, or would say nothing.

        `version` is that of the transactions which its coordinator keeps to.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            return True
        epoch, is_open = header.producer_epoch, known.transaction_start != NO_TRANSACTION
        _check_epoch(header, known.epoch)
        if version >= EPOCH_PER_TRANSACTION and epoch == known.epoch:
            if is_open:
                raise InvalidProducerEpoch(
                    f"producer {header.producer_id} is at epoch {epoch} in a transaction that a "
                    "marker of the same epoch cannot end: it is of the one before"
                )
            return False
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"a marker for producer {header.producer_id} by a coordinator of epoch "
                f"{marker.coordinator_epoch}, after one of {known.coordinator_epoch}"
            )
        is_news = epoch > known.epoch or marker.coordinator_epoch > known.coordinator_epoch
        return is_open or is_news

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction here, under this epoch, that has no end."""
        known = self._producers.get(producer_id)
        return (
            known is not None and known.epoch == epoch and known.transaction_start != NO_TRANSACTION
        )

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> Verification | None:
        """For a transaction that is to begin here; None when it has begun already."""
        if self.has_open(producer_id, epoch):
            return None
        return self._verifications.begin(producer_id, epoch, sequence, now_ms)

    def check_verified(self, header: BatchHeader, verification: Verification | None) -> None:
        """A transaction begins here only by a batch that has been asked about."""
        if not self.has_open(header.producer_id, header.producer_epoch):
            self._verifications.check(header, verification)

    def _check_awaited(self, header: BatchHeader) -> None:
        awaited = self._awaited.get(header.producer_id)
        if awaited is None:
            if self._overflow_ms is not None and header.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} began with sequence {header.base_sequence}, "
                    "and an earlier batch may have been refused"
                )
        elif header.producer_epoch != awaited.epoch:
            _check_new_epoch(header, awaited.epoch)
        elif 0 < (header.base_sequence - awaited.sequence) & SEQUENCE_MAX <= SEQUENCE_MAX // 2:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.base_sequence}, "
                f"but {awaited.sequence} was refused and has not come again"
            )

    def refuse(self, header: BatchHeader, now_ms: int) -> None:
        """A batch was refused: if it is its producer's first, none after it is taken before it."""
        producer_id = header.producer_id
        if producer_id < 0 or header.base_sequence < 0:
            return
        known = self._producers.get(producer_id)
        if known is None:
            if self._overflow_ms is None or header.base_sequence == 0:
                self._await(producer_id, header.producer_epoch, header.base_sequence, now_ms)
        elif known.last_seen_ms < now_ms:
            # What comes next is known from the batches before, which may not expire just now.
            self._producers[producer_id] = known._replace(last_seen_ms=now_ms)

    def _await(self, producer_id: int, epoch: int, sequence: int, since_ms: int) -> None:
        awaited = self._awaited.get(producer_id)
        if awaited is None and len(self._awaited) >= AWAITED_MAX:
            self._overflow_ms = since_ms
        elif awaited is None or epoch > awaited.epoch:
            self._awaited[producer_id] = Awaited(epoch, sequence, since_ms)

    def inherit(self, before: ProducerState, end_offset: int, now_ms: int) -> None:
        """This is the state of the same log, cut at its end: what is missing has to come again."""
        for producer_id, producer in before._producers.items():
            if producer_id not in self._producers and producer.spans:
                missing = (s.first_sequence for s in producer.spans if s.first_offset >= end_offset)
                following = (producer.spans[-1].last_sequence + 1) & SEQUENCE_MAX
                self._await(producer_id, producer.epoch, next(missing, following), now_ms)
        for producer_id, awaited in before._awaited.items():
            if producer_id not in self._producers:
                self._await(producer_id, *awaited)
        if self._overflow_ms is None:
            self._overflow_ms = before._overflow_ms

    def add(
        self,
        header: BatchHeader,
        base_offset: int,
        now_ms: int,
        place: LogPosition | None = None,
    ) -> None:
        """A batch that `check` let pass is appended at `base_offset`; `place`, if it is known.

        Idleness counts from the append, not from the client's own timestamps as in Kafka: who
        copies old messages is not an idle producer.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        sequence, delta = header.base_sequence, header.last_offset_delta
        timestamp, attributes = header.max_timestamp, header.attributes
        known = self._producers.get(producer_id)
        self._journal.append((producer_id, known))
        if known is None and self._awaited:
            self._awaited.pop(producer_id, None)
        if self._verifications:
            self._verifications.end(producer_id)
        spans = known.spans if known is not None and known.epoch == epoch else ()
        if sequence >= 0 and not attributes & CONTROL_BIT:
            last_sequence = (sequence + delta) & SEQUENCE_MAX
            span = (sequence, last_sequence, base_offset, base_offset + delta, timestamp)
            spans = (*spans[1 - WINDOW_BATCHES :], _new_tuple(BatchSpan, span))
        seen_ms = timestamp if timestamp > now_ms else now_ms
        transaction = (-1, NO_TRANSACTION) if known is None else known[3:]
        if (
            attributes & TRANSACTIONAL_BIT
            and transaction[1] == NO_TRANSACTION
            and not attributes & CONTROL_BIT
        ):
            transaction = (transaction[0], base_offset)
            self.transactions.begin(base_offset, place)
        self._producers[producer_id] = _new_tuple(Producer, (epoch, spans, seen_ms, *transaction))

    def add_marker(
        self, header: BatchHeader, marker: Marker, base_offset: int, now_ms: int
    ) -> AbortedTransaction | None:
        """A control batch is appended at `base_offset`: what was open has ended.

        Where it was aborted, that belongs into the index.
        """
        if marker.kind == OTHER:
            self.add(header, base_offset, now_ms)
            return None
        producer_id, epoch = header.producer_id, header.producer_epoch
        known = self._producers.get(producer_id)
        self._journal.append((producer_id, known))
        if known is None and self._awaited:
            self._awaited.pop(producer_id, None)
        self._verifications.end(producer_id)
        spans = known.spans if known is not None and known.epoch == epoch else ()
        seen_ms = max(header.max_timestamp, now_ms)
        self._producers[producer_id] = Producer(epoch, spans, seen_ms, marker.coordinator_epoch)
        if known is None or known.transaction_start == NO_TRANSACTION:
            return None
        transactions, start = self.transactions, known.transaction_start
        transactions.end(start, base_offset)
        if marker.kind != ABORT:
            return None
        first_open = transactions.first_open
        stable_offset = base_offset + 1 if first_open is None else first_open
        return AbortedTransaction(producer_id, start, base_offset, stable_offset)

    def replay(self, header: BatchHeader, batch: Buffer, now_ms: int) -> AbortedTransaction | None:
        """Takes in a batch that is in the log already, unchecked as it once was checked.

        Of a control batch `batch` is all of it.
        """
        aborted = None
        if header.producer_id >= 0:
            if header.attributes & CONTROL_BIT:
                aborted = self.add_marker(header, marker_in(batch), header.base_offset, now_ms)
            else:
                self.add(header, header.base_offset, now_ms)
            self._journal.clear()
        return aborted

    @property
    def change_count(self) -> int:
        """How many changes are provisional."""
        return len(self._journal)

    def keep(self, count: int | None = None) -> None:
        """What was added is written, or the first `count` changes of it."""
        del self._journal[:count]

    def undo(self) -> None:
        """What was added since `keep` was never written."""
        while self._journal:
            producer_id, before = self._journal.pop()
            self._undo_transaction(producer_id, before)
            if before is not None:
                self._producers[producer_id] = before
                continue
            undone = self._producers.pop(producer_id, None)
            if undone is not None and undone.spans:
                first = undone.spans[0].first_sequence
                self._await(producer_id, undone.epoch, first, undone.last_seen_ms)

    def _undo_transaction(self, producer_id: int, before: Producer | None) -> None:
        undone = self._producers.get(producer_id)
        start = NO_TRANSACTION if undone is None else undone.transaction_start
        start_before = NO_TRANSACTION if before is None else before.transaction_start
        if start == start_before:
            return
        if start != NO_TRANSACTION:
            self.transactions.unbegin(start)
        else:
            self.transactions.unend(start_before)

    def expire(self, now_ms: int, expiry_ms: int, ids: Iterable[int] | None = None) -> None:
        """Forgets who, of these or of all, has been idle for too long and has no transaction."""
        for producer_id in self.ids() if ids is None else ids:
            producer = self._producers.get(producer_id)
            if (
                producer is not None
                and now_ms - producer.last_seen_ms >= expiry_ms
                and producer.transaction_start == NO_TRANSACTION
            ):
                del self._producers[producer_id]
        if self._awaited:
            self._awaited = {
                producer_id: awaited
                for producer_id, awaited in self._awaited.items()
                if now_ms - awaited.since_ms < expiry_ms
            }
        self._verifications.expire(now_ms, expiry_ms)
        if self._overflow_ms is not None and now_ms - self._overflow_ms >= expiry_ms:
            self._overflow_ms = None

    def __len__(self) -> int:
        return len(self._producers)

    def ids(self) -> list[int]:
        return list(self._producers)

    def first(self, count_max: int) -> list[tuple[int, Producer]]:
        """So many of them, with their ids; first those with an open transaction."""
        known = self._producers.items()
        if not self.transactions.open_count:
            return list(islice(known, count_max))
        begun = [each for each in known if each[1].transaction_start != NO_TRANSACTION]
        others = (each for each in known if each[1].transaction_start == NO_TRANSACTION)
        return list(islice(chain(begun, others), count_max))

    def copy(self) -> ProducerState:
        """All that is known now, for a thread to encode."""
        copy = ProducerState()
        copy._producers = self._producers.copy()
        return copy

    def encode(self) -> bytes:
        """The contents of a snapshot file."""
        entries = b"".join(_ENTRY.pack(*row) for row in self._rows())
        count = len(entries) // _ENTRY.size
        data = bytearray(_HEAD.pack(SNAPSHOT_VERSION, 0, count) + entries)
        struct.pack_into(">I", data, 2, crc32c(memoryview(data)[_CRC_FROM:]))
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        state = cls()
        for row in snapshot_rows(data):
            state._take_row(*row)
        for producer in state._producers.values():
            if producer.transaction_start != NO_TRANSACTION:
                state.transactions.begin(producer.transaction_start, None)
        return state

    def _rows(self) -> Iterator[tuple[int, ...]]:
        for producer_id, producer in sorted(self._producers.items()):
            tail = (producer.coordinator_epoch, producer.transaction_start)
            if not producer.spans:
                yield producer_id, producer.epoch, -1, -1, 0, producer.last_seen_ms, *tail
            for span in producer.spans:
                is_last = span is producer.spans[-1]
                yield (
                    producer_id,
                    producer.epoch,
                    span.last_sequence,
                    span.last_offset,
                    span.last_offset - span.first_offset,
                    producer.last_seen_ms if is_last else span.timestamp,
                    *tail,
                )

    def _take_row(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        coordinator_epoch: int,
        transaction_start: int,
    ) -> None:
        known = self._producers.get(producer_id)
        spans = known.spans if known is not None and known.epoch == epoch else ()
        if last_offset >= 0:
            first_sequence = (last_sequence - offset_delta) & SEQUENCE_MAX
            first_offset = last_offset - offset_delta
            span = BatchSpan(first_sequence, last_sequence, first_offset, last_offset, timestamp)
            spans = (*spans[1 - WINDOW_BATCHES :], span)
        self._producers[producer_id] = Producer(
            epoch, spans, timestamp, coordinator_epoch, transaction_start
        )


def snapshot_rows(data: bytes) -> Iterator[tuple[Any, ...]]:
    """The entries of a snapshot file, each with the fields that the top of this page lists."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"version {version}")
    if crc != crc32c(memoryview(data)[_CRC_FROM:]):
        raise CorruptSnapshot("the CRC does not match")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{count} entries in {len(data)} bytes")
    return _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])


def marker_in(batch: Buffer) -> Marker:
    """Of a control batch; what cannot be read, or is gone, ends nothing."""
    try:
        return read_marker(batch) or _NO_MARKER
    except CorruptBatch:
        return _NO_MARKER


def _check_within(header: BatchHeader, known: Producer) -> None:
    """What is not transactional cannot come in the middle of a transaction."""
    is_open = known.transaction_start != NO_TRANSACTION
    if is_open and not header.attributes & TRANSACTIONAL_BIT:
        raise InvalidTransactionState(
            f"producer {header.producer_id} has a transaction open since offset "
            f"{known.transaction_start}, and sent a batch that is not transactional"
        )


def _check_epoch(header: BatchHeader, known_epoch: int) -> None:
    if header.producer_epoch < known_epoch:
        raise InvalidProducerEpoch(
            f"producer {header.producer_id} is at epoch {known_epoch}, not {header.producer_epoch}"
        )


def _check_new_epoch(header: BatchHeader, known_epoch: int) -> None:
    _check_epoch(header, known_epoch)
    if header.base_sequence != 0:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} began epoch {header.producer_epoch} "
            f"with sequence {header.base_sequence}"
        )
