"""The transaction coordinator of one shard, that is of one partition of `__transaction_state`.

Durable state is the fold over the shard's records: the last of each transactional id. A transaction
is decided by one record, PrepareCommit or PrepareAbort. Whoever runs this machine writes markers to
the transaction's partitions once that record is committed, and calls `marked` when all have theirs;
after a failover it finds the record again, and goes on from there. Timers are soft.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ottla.coordinators.settings import fits_in_record
from ottla.coordinators.timers import Timers
from ottla.coordinators.transaction_records import (
    NO_PRODUCER_EPOCH,
    NO_TIME,
    WITH_EPOCHS,
    WITHOUT_EPOCHS,
    Transaction,
    TransactionRecord,
    by_topic,
    decode_record,
    encode_record,
)
from ottla.coordinators.transaction_states import (
    CURRENT_ONLY,
    ENDING,
    ENDING_WITH_EPOCHS,
    NEXT,
    OPEN,
    PREPARED,
    RESTING,
    Ending,
    TransactionEvent,
    TransactionState,
)
from ottla.errors import ErrorCode
from ottla.machine import Decision, Ticket
from ottla.types import NO_PRODUCER, Now, TopicPartition
from ottla.wire.messages import describe_transactions, list_transactions
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

# The last epoch is kept for the coordinator, so that a producer can always be fenced.
EPOCH_MAX: Final = 2**15 - 1
LAST_EPOCH_OF_CLIENTS: Final = EPOCH_MAX - 1
# One call of `on_deadline` does no more than this, so that the event loop stays responsive.
TIMERS_AT_ONCE: Final = 500
SWEPT_AT_ONCE: Final = 500
SWEEP: Final = ""
FIRST_ENDING_WITH_EPOCHS: Final = 5
FIRST_ADDING_BY_BROKERS: Final = 4

Outcome = Decision[TransactionRecord]


class Needs(Enum):
    """What a decider has to be given before it can decide."""

    PRODUCER_ID = "producer id"


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The defaults are Kafka's."""

    timeout_max_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 60 * 60_000
    sweep_interval_ms: int = 3_600_000


class TransactionMachine:
    """A `StateMachine`; the deciders take `now` and `ticket` last, as the runtime does."""

    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        # Those that have begun and are not over, the longest begun first.
        self.open: dict[str, None] = {}
        self.timed_out = 0
        self._timers: Timers[str] = Timers()
        self._unswept: list[str] = []

    # ------------------------------------------------------------------------------ the machine

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> TransactionRecord | None:
        return decode_record(key, value)

    def apply(self, record: TransactionRecord, wall_ms: int) -> None:
        name, transaction = record
        if transaction is None:
            self.transactions.pop(name, None)
            self.open.pop(name, None)
            return
        self.transactions[name] = transaction
        if transaction.state in OPEN:
            self.open.setdefault(name)
        else:
            self.open.pop(name, None)

    def loaded(self, now: Now) -> None:
        for name in self.open:
            self._watch(name, self.transactions[name], now)
        self._timers.set(SWEEP, now.steady_ms + self.settings.sweep_interval_ms)

    def abandon(self) -> list[Ticket]:
        self.transactions.clear()
        self.open.clear()
        self._timers.clear()
        self._unswept.clear()
        return []

    def next_deadline_ms(self) -> int | None:
        return self._timers.first_ms()

    def on_deadline(self, now: Now) -> Outcome:
        out: Outcome = Decision()
        for _ in range(TIMERS_AT_ONCE):
            name = self._timers.pop_due(now.steady_ms)
            if name is None:
                break
            if name == SWEEP:
                self._sweep(now, out)
                break
            self._time_out(name, now, out)
        return out

    # ---------------------------------------------------------------------------------- producers

    def init(
        self, request: InitProducerIdRequest, fresh_id: int | None, now: Now, ticket: Ticket
    ) -> Outcome:
        """Answers with an InitProducerIdResponse, or that it needs the id of a new producer.

        Whoever asks without an identity fences those who had the id before. Who asks with one
        wants to go on after an error (KIP-360).
        """
        name = request.transactional_id
        if not name or not fits_in_record(name):
            return _refused(ticket, ErrorCode.INVALID_REQUEST)
        if not 0 < request.transaction_timeout_ms <= self.settings.timeout_max_ms:
            return _refused(ticket, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self.transactions.get(name)
        has_identity = request.producer_id != NO_PRODUCER
        if known is None:
            if fresh_id is None:
                return Decision(replies=[(ticket, Needs.PRODUCER_ID)])
            new = Transaction(fresh_id, 0, request.transaction_timeout_ms, updated_ms=now.wall_ms)
            return _begun(name, new, ticket)
        if has_identity and not _may_go_on(known, request):
            return _refused(ticket, ErrorCode.PRODUCER_FENCED)
        if known.state in PREPARED:
            return _refused(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is TransactionState.ONGOING:
            # The client asks again, and gets a further epoch when this one is aborted.
            out = _refused(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
            out.records.append(TransactionRecord(name, _fenced(known, now)))
            return out
        return self._next_epoch(name, known, request, fresh_id, now, ticket)

    def _next_epoch(
        self,
        name: str,
        known: Transaction,
        request: InitProducerIdRequest,
        fresh_id: int | None,
        now: Now,
        ticket: Ticket,
    ) -> Outcome:
        has_identity = request.producer_id != NO_PRODUCER
        is_current = request.producer_epoch == known.epoch
        changed = known._replace(
            state=NEXT[known.state, TransactionEvent.INIT],
            timeout_ms=request.transaction_timeout_ms,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now.wall_ms,
            previous_producer_id=known.producer_id,
            last_epoch=known.epoch if has_identity else NO_PRODUCER_EPOCH,
        )
        if known.epoch >= LAST_EPOCH_OF_CLIENTS and (is_current or not has_identity):
            if fresh_id is None:
                return Decision(replies=[(ticket, Needs.PRODUCER_ID)])
            return _begun(name, changed._replace(producer_id=fresh_id, epoch=0), ticket)
        if is_current or not has_identity:
            return _begun(name, changed._replace(epoch=known.epoch + 1), ticket)
        if request.producer_epoch == known.last_epoch:
            # It was answered once already, and the answer was lost.
            kept = changed._replace(
                last_epoch=known.last_epoch, previous_producer_id=known.previous_producer_id
            )
            return _begun(name, kept, ticket)
        return _refused(ticket, ErrorCode.PRODUCER_FENCED)

    # --------------------------------------------------------------------------------- partitions

    def add(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        client_version: int,
        now: Now,
        ticket: Ticket,
    ) -> Outcome:
        """Answers with an ErrorCode."""
        known, code = self._of_producer(name, producer_id, epoch)
        if known is None:
            return Decision(replies=[(ticket, code)])
        is_ongoing = known.state is TransactionState.ONGOING
        if is_ongoing and known.partitions.issuperset(partitions):
            return Decision(replies=[(ticket, ErrorCode.NONE)])
        changed = known._replace(
            state=NEXT[known.state, TransactionEvent.ADD],
            partitions=known.partitions.union(partitions),
            started_ms=known.started_ms if is_ongoing else now.wall_ms,
            updated_ms=now.wall_ms,
            previous_producer_id=known.producer_id,
            client_version=client_version,
        )
        if not is_ongoing:
            self._watch(name, changed, now)
        return Decision([TransactionRecord(name, changed)], [(ticket, ErrorCode.NONE)])

    def verify(
        self, name: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each was added to the transaction that is under way now."""
        known, code = self._of_producer(name, producer_id, epoch)
        if known is None:
            return dict.fromkeys(partitions, code)
        is_ongoing = known.state is TransactionState.ONGOING
        return {
            each: (
                ErrorCode.NONE
                if is_ongoing and each in known.partitions
                else ErrorCode.TRANSACTION_ABORTABLE
            )
            for each in partitions
        }

    def _of_producer(
        self, name: str, producer_id: int, epoch: int
    ) -> tuple[Transaction | None, ErrorCode]:
        """The transaction to which its producer may add, or why it may not."""
        if not name:
            return None, ErrorCode.INVALID_REQUEST
        known = self.transactions.get(name)
        if known is None or known.producer_id != producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return None, ErrorCode.PRODUCER_FENCED
        if known.state in PREPARED:
            return None, ErrorCode.CONCURRENT_TRANSACTIONS
        return known, ErrorCode.NONE

    # ------------------------------------------------------------------------------------ the end

    def end(
        self, request: EndTxnRequest, version: int, fresh_id: int | None, now: Now, ticket: Ticket
    ) -> Outcome:
        """Answers with an EndTxnResponse, or that it needs the id of a new producer."""
        name = request.transactional_id
        known = self.transactions.get(name)
        has_epochs = version >= FIRST_ENDING_WITH_EPOCHS
        if not name:
            return _not_ended(ticket, ErrorCode.INVALID_REQUEST)
        if known is None:
            return _not_ended(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_of_last_id = has_epochs and _is_of_last_id(known, request)
        if known.producer_id != request.producer_id and not is_of_last_id:
            return _not_ended(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_retry = has_epochs and (is_of_last_id or known.epoch == request.producer_epoch + 1)
        if not _is_epoch_valid(known, request, is_retry=is_retry, has_epochs=has_epochs):
            return _not_ended(ticket, ErrorCode.PRODUCER_FENCED)
        ending = (
            ENDING_WITH_EPOCHS.get((known.state, request.committed, is_retry), Ending.INVALID)
            if has_epochs
            else ENDING.get((known.state, request.committed), Ending.INVALID)
        )
        if ending is Ending.ALREADY and known.epoch > LAST_EPOCH_OF_CLIENTS:
            return _not_ended(ticket, ErrorCode.PRODUCER_FENCED)
        if ending is Ending.ALREADY:
            return Decision(replies=[(ticket, _ended(known))])
        if ending is Ending.UNDER_WAY:
            return _not_ended(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        if ending is Ending.INVALID:
            return _not_ended(ticket, ErrorCode.INVALID_TXN_STATE)
        is_exhausted = has_epochs and known.epoch >= LAST_EPOCH_OF_CLIENTS
        if is_exhausted and fresh_id is None:
            return Decision(replies=[(ticket, Needs.PRODUCER_ID)])
        prepared = _prepared(known, request, fresh_id if is_exhausted else None, now)
        if has_epochs:
            prepared = prepared._replace(
                epoch=known.epoch + 1, last_epoch=known.epoch, client_version=WITH_EPOCHS
            )
        else:
            prepared = prepared._replace(client_version=WITHOUT_EPOCHS)
        return Decision([TransactionRecord(name, prepared)], [(ticket, _ended(prepared))])

    def marked(self, name: str, prepared: Transaction, now: Now, ticket: Ticket) -> Outcome:
        """All partitions have their marker. Answers with whether that was still wanted."""
        known = self.transactions.get(name)
        if (
            known is None
            or known.state is not prepared.state
            or known.producer_id != prepared.producer_id
            or known.epoch != prepared.epoch
        ):
            return Decision(replies=[(ticket, False)])
        producer_id, epoch = _identity_after(known)
        done = known._replace(
            state=NEXT[known.state, TransactionEvent.MARKED],
            producer_id=producer_id,
            epoch=epoch,
            partitions=frozenset(),
            updated_ms=now.wall_ms,
            previous_producer_id=known.producer_id,
            next_producer_id=NO_PRODUCER,
        )
        return Decision([TransactionRecord(name, done)], [(ticket, True)])

    # ------------------------------------------------------------------------------------- timers

    def _watch(self, name: str, transaction: Transaction, now: Now) -> None:
        left_ms = transaction.started_ms + transaction.timeout_ms - now.wall_ms
        # Not longer than it may take in all: the wall's clock may have been set back.
        self._timers.set(name, now.steady_ms + max(0, min(left_ms, transaction.timeout_ms)))

    def _time_out(self, name: str, now: Now, out: Outcome) -> None:
        known = self.transactions.get(name)
        if known is None or known.state is not TransactionState.ONGOING:
            return
        if known.started_ms + known.timeout_ms > now.wall_ms:
            self._watch(name, known, now)
            return
        self.timed_out += 1
        out.records.append(TransactionRecord(name, _fenced(known, now)))

    def _sweep(self, now: Now, out: Outcome) -> None:
        """Forgets ids that nobody has used for long, some at a time."""
        if not self._unswept:
            self._unswept = list(self.transactions)
        todo, self._unswept = self._unswept[:SWEPT_AT_ONCE], self._unswept[SWEPT_AT_ONCE:]
        for name in todo:
            known = self.transactions.get(name)
            if (
                known is not None
                and known.state in RESTING
                and known.updated_ms + self.settings.expiration_ms <= now.wall_ms
            ):
                out.records.append(TransactionRecord(name, None))
        pause_ms = 1 if self._unswept else self.settings.sweep_interval_ms
        self._timers.set(SWEEP, now.steady_ms + pause_ms)

    # ----------------------------------------------------------------------------- administration

    def describe(self, name: str) -> describe_transactions.TransactionState:
        known = self.transactions.get(name)
        if known is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST
            return describe_transactions.TransactionState(error_code=code, transactional_id=name)
        return describe_transactions.TransactionState(
            transactional_id=name,
            transaction_state=known.state.title,
            transaction_timeout_ms=known.timeout_ms,
            transaction_start_time_ms=known.started_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            topics=[describe_transactions.TopicData(*each) for each in by_topic(known.partitions)],
        )

    def list_transactions(
        self, states: Collection[str], producer_ids: Collection[int], duration_ms: int, now: Now
    ) -> list[list_transactions.TransactionState]:
        """All, or those in one of the states, of one of the producers, and open for so long."""
        return [
            list_transactions.TransactionState(
                transactional_id=name,
                producer_id=known.producer_id,
                transaction_state=known.state.title,
            )
            for name, known in self.transactions.items()
            if (not states or known.state.title in states)
            and (not producer_ids or known.producer_id in producer_ids)
            and (duration_ms < 0 or now.wall_ms - known.started_ms > duration_ms)
        ]

    def oldest_start_ms(self) -> int | None:
        """When the transaction began that has been open for longest."""
        return min((self.transactions[name].started_ms for name in self.open), default=None)

    def snapshot(self) -> dict[str, Any]:
        """The durable state, for comparing: equal logs give equal snapshots."""
        return {
            name: known._replace(last_epoch=NO_PRODUCER_EPOCH)
            for name, known in self.transactions.items()
        }


def _may_go_on(known: Transaction, request: InitProducerIdRequest) -> bool:
    """Whether a producer that names its identity is the one we know, or was just before."""
    if request.producer_id == known.producer_id:
        return True
    is_exhausted = request.producer_epoch >= LAST_EPOCH_OF_CLIENTS
    return request.producer_id == known.previous_producer_id and is_exhausted


def _is_of_last_id(known: Transaction, request: EndTxnRequest) -> bool:
    """A repetition of the request for which the producer got a new id."""
    return (
        known.previous_producer_id == request.producer_id
        and request.producer_epoch == LAST_EPOCH_OF_CLIENTS
        and known.epoch == 0
    )


def _is_epoch_valid(
    known: Transaction, request: EndTxnRequest, *, is_retry: bool, has_epochs: bool
) -> bool:
    is_current = request.producer_epoch == known.epoch
    if not has_epochs or known.state in CURRENT_ONLY:
        return is_current
    return is_retry or is_current


def _prepared(
    known: Transaction, request: EndTxnRequest, next_id: int | None, now: Now
) -> Transaction:
    event = TransactionEvent.COMMIT if request.committed else TransactionEvent.ABORT
    is_ongoing = known.state is TransactionState.ONGOING
    return known._replace(
        state=NEXT[known.state, event],
        started_ms=known.started_ms if is_ongoing else now.wall_ms,
        updated_ms=now.wall_ms,
        previous_producer_id=known.producer_id,
        next_producer_id=NO_PRODUCER if next_id is None else next_id,
    )


def _fenced(known: Transaction, now: Now) -> Transaction:
    """An abort by the coordinator itself: under an epoch of which no producer knows."""
    return known._replace(
        state=NEXT[known.state, TransactionEvent.ABORT],
        epoch=min(known.epoch + 1, EPOCH_MAX),
        updated_ms=now.wall_ms,
        previous_producer_id=known.producer_id,
        last_epoch=NO_PRODUCER_EPOCH,
    )


def _identity_after(prepared: Transaction) -> tuple[int, int]:
    """Id and epoch of the next transaction."""
    if prepared.next_producer_id != NO_PRODUCER:
        return prepared.next_producer_id, 0
    return prepared.producer_id, prepared.epoch


def _begun(name: str, transaction: Transaction, ticket: Ticket) -> Outcome:
    reply = InitProducerIdResponse(
        producer_id=transaction.producer_id, producer_epoch=transaction.epoch
    )
    return Decision([TransactionRecord(name, transaction)], [(ticket, reply)])


def _refused(ticket: Ticket, code: ErrorCode) -> Outcome:
    return Decision(replies=[(ticket, init_refusal(code))])


def init_refusal(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=code, producer_id=NO_PRODUCER, producer_epoch=NO_PRODUCER_EPOCH
    )


def _ended(transaction: Transaction) -> EndTxnResponse:
    producer_id, epoch = _identity_after(transaction)
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)


def _not_ended(ticket: Ticket, code: ErrorCode) -> Outcome:
    return Decision(replies=[(ticket, EndTxnResponse(error_code=code))])
