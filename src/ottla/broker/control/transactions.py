"""Where transactions are coordinated: the shards of `__transaction_state`, and their markers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ottla.broker.control.runtime import Runtime
from ottla.broker.control.shards import ShardService
from ottla.broker.control.transaction_markers import RETRY_PAUSE_S, Markers, Unmarked
from ottla.broker.control.transaction_partitions import TransactionPartitions
from ottla.coordinators.transaction_records import Transaction, TransactionRecord
from ottla.coordinators.transaction_states import PREPARED, TransactionState
from ottla.coordinators.transactions import Needs, TransactionMachine, TransactionSettings
from ottla.machine import Decision, Ticket
from ottla.types import TRANSACTIONS_TOPIC, Now

if TYPE_CHECKING:
    from ottla.broker.control.needs import ControlServices
    from ottla.broker.control.node_connection import Brokers
    from ottla.broker.control.producer_ids import ProducerIds
    from ottla.config import BrokerConfig

TransactionShard: TypeAlias = Runtime[TransactionMachine]
R = TypeVar("R")
Decide: TypeAlias = Callable[
    [TransactionMachine, int | None, Now, Ticket], Decision[TransactionRecord]
]


class TransactionService(ShardService[TransactionMachine]):
    topic = TRANSACTIONS_TOPIC

    def __init__(self, brokers: Brokers, producer_ids: ProducerIds) -> None:
        super().__init__()
        self._brokers = brokers
        self._producer_ids = producer_ids
        # Decisions that are committed and not carried out, of each shard.
        self._prepared: dict[int, dict[str, Transaction]] = {}
        self.aborted = 0
        self.committed = 0

    def attach(self, services: ControlServices) -> None:
        super().attach(services)
        self.markers = Markers(services, self._brokers, self._epoch_of, self._marked)
        # For what is led here, whoever coordinates its transactions.
        self.partitions = TransactionPartitions(services, self._brokers, self)

    def close(self) -> None:
        self.partitions.close()
        self.markers.close()
        super().close()

    def new_shard(self, index: int) -> TransactionShard:
        services = self.services
        self._prepared[index] = {}
        return Runtime(
            services.loop,
            services.clock,
            services.io,
            services.partitions.get(TRANSACTIONS_TOPIC, index),
            TransactionMachine(_settings(services.config)),
            on_committed=partial(self._committed, index),
            wait_ms_max=services.config.request_timeout_ms,
            on_loaded=partial(self._loaded, index),
        )

    def shard_left(self, index: int) -> None:
        self._prepared.pop(index, None)
        self.markers.drop_shard(index)

    def _epoch_of(self, index: int) -> int:
        """By it partitions tell a coordinator from the one before."""
        return self._shards[index].partition.leader_epoch

    async def decide(self, name: str, decide: Decide) -> Any:
        """A decider's reply; it is asked again with a new producer id where it needs one."""
        fresh_id: int | None = None
        while True:
            reply = await self.shard_of(name).submit(
                lambda machine, now, ticket: decide(machine, fresh_id, now, ticket)  # noqa: B023
            )
            if reply is not Needs.PRODUCER_ID:
                return reply
            fresh_id = await self._producer_ids.next()

    # ---------------------------------------------------------------------------------- decisions

    def _committed(self, index: int, records: list[TransactionRecord]) -> None:
        """Markers follow a decision only when it is committed: then no failover can lose it."""
        prepared = self._prepared.get(index)
        if prepared is None:
            return
        is_deciding = self._shards[index].is_deciding if index in self._shards else False
        for name, transaction in records:
            if transaction is not None and transaction.state in PREPARED:
                prepared[name] = transaction
                if is_deciding:
                    self._count(transaction)
                    self.markers.add(index, name, transaction)
            elif prepared.pop(name, None) is not None:
                self.markers.drop(index, name)

    def _count(self, transaction: Transaction) -> None:
        if transaction.state is TransactionState.PREPARE_COMMIT:
            self.committed += 1
        else:
            self.aborted += 1

    def _loaded(self, index: int) -> None:
        """What was decided before, here or by another coordinator, is carried out now."""
        for name, transaction in self._prepared.get(index, {}).items():
            self.markers.add(index, name, transaction)

    def _marked(self, unmarked: Unmarked) -> None:
        shard = self._shards.get(unmarked.shard)
        if shard is None or unmarked.is_dropped:
            return
        future = shard.submit(
            lambda machine, now, ticket: machine.marked(
                unmarked.name, unmarked.transaction, now, ticket
            )
        )
        future.add_done_callback(partial(self._completed, unmarked))

    def _completed(self, unmarked: Unmarked, done: asyncio.Future[bool]) -> None:
        """The state may have been read again meanwhile, or the disk refused: then once more."""
        if done.cancelled() or done.exception() is None:
            return
        self.services.loop.call_later(RETRY_PAUSE_S, self._marked, unmarked)


def _settings(config: BrokerConfig) -> TransactionSettings:
    return TransactionSettings(
        timeout_max_ms=config.transaction_max_timeout_ms,
        expiration_ms=config.transactional_id_expiration_ms,
        sweep_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
    )
