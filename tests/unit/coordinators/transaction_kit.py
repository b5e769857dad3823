"""A shard of `__transaction_state` without a broker, and a clock set by hand."""

from __future__ import annotations

from typing import Any

from ottla.coordinators.transaction_records import Transaction, TransactionRecord
from ottla.coordinators.transactions import Needs, TransactionMachine, TransactionSettings
from ottla.errors import ErrorCode
from ottla.machine import Decision
from ottla.types import Now, TopicPartition
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

WALL_START_MS = 1_700_000_000_000
A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
FIRST_FRESH_ID = 1000


class TransactionShard:
    def __init__(self, **settings: int) -> None:
        self.settings = TransactionSettings(**settings)
        self.steady_ms = 5_000
        self.wall_ms = WALL_START_MS
        self.fresh_ids = FIRST_FRESH_ID
        self.log: list[tuple[bytes | None, bytes | None]] = []
        self.machine = self.replayed()

    @property
    def now(self) -> Now:
        return Now(self.wall_ms, self.steady_ms)

    def replayed(self) -> TransactionMachine:
        """A machine that has read the log, as another node after a failover."""
        machine = TransactionMachine(self.settings)
        for key, value in self.log:
            record = machine.decode(key, value)
            assert record is not None
            machine.apply(record, self.wall_ms)
        machine.loaded(self.now)
        return machine

    def fail_over(self) -> None:
        self.machine.abandon()
        self.machine = self.replayed()

    def carry_out(self, decision: Decision[Any]) -> Any:
        for record in decision.records:
            self.log.append(self.machine.encode(record))
            self.machine.apply(record, self.wall_ms)
        assert len(decision.replies) <= 1
        return decision.replies[0][1] if decision.replies else None

    def pass_ms(self, ms: int) -> None:
        """Time passes, and what is due is done."""
        self.steady_ms += ms
        self.wall_ms += ms
        while (due_ms := self.machine.next_deadline_ms()) is not None and due_ms <= self.steady_ms:
            self.carry_out(self.machine.on_deadline(self.now))

    def written(self) -> list[TransactionRecord]:
        found = [self.machine.decode(key, value) for key, value in self.log]
        return [record for record in found if record is not None]

    def of(self, name: str = "t") -> Transaction:
        return self.machine.transactions[name]

    # ----------------------------------------------------------------------------- the requests

    def _with_fresh_id(self, decide: Any) -> Any:
        reply = self.carry_out(decide(None))
        if reply is Needs.PRODUCER_ID:
            self.fresh_ids += 1
            reply = self.carry_out(decide(self.fresh_ids))
        return reply

    def init(
        self, name: str = "t", identity: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(name, timeout_ms, *identity)
        reply = self._with_fresh_id(
            lambda fresh: self.machine.init(request, fresh, self.now, object())
        )
        assert isinstance(reply, InitProducerIdResponse)
        return reply

    def identity(self, name: str = "t", **options: Any) -> tuple[int, int]:
        reply = self.init(name, **options)
        assert not reply.error_code, ErrorCode(reply.error_code).name
        return reply.producer_id, reply.producer_epoch

    def add(
        self,
        identity: tuple[int, int],
        *partitions: TopicPartition,
        name: str = "t",
        client_version: int = 0,
    ) -> ErrorCode:
        decision = self.machine.add(
            name, *identity, partitions or (A,), client_version, self.now, object()
        )
        return ErrorCode(self.carry_out(decision))

    def end(
        self, identity: tuple[int, int], *, commit: bool = True, version: int = 4, name: str = "t"
    ) -> EndTxnResponse:
        request = EndTxnRequest(name, *identity, commit)
        reply = self._with_fresh_id(
            lambda fresh: self.machine.end(request, version, fresh, self.now, object())
        )
        assert isinstance(reply, EndTxnResponse)
        return reply

    def ended(self, identity: tuple[int, int], **options: Any) -> ErrorCode:
        return ErrorCode(self.end(identity, **options).error_code)

    def mark(self, name: str = "t", prepared: Transaction | None = None) -> bool:
        """All markers are written."""
        prepared = prepared or self.of(name)
        return bool(self.carry_out(self.machine.marked(name, prepared, self.now, object())))
