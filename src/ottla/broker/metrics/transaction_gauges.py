"""What is known of the transactions that are coordinated here."""

from __future__ import annotations

from ottla.broker.counters import Metrics
from ottla.broker.services import Services


def register_transaction_gauges(metrics: Metrics, services: Services) -> None:
    transactions = services.transactions

    def oldest_s() -> float:
        starts = [shard.machine.oldest_start_ms() for shard in transactions.shards()]
        known = [start for start in starts if start is not None]
        return max(0.0, (services.clock.wall_ms() - min(known)) / 1000) if known else 0.0

    metrics.value(
        "ottla_transactions_open",
        "Transactions coordinated here that have begun and are not over.",
        lambda: sum(len(shard.machine.open) for shard in transactions.shards()),
    )
    metrics.value(
        "ottla_transaction_oldest_seconds",
        "For how long the oldest of them has been open.",
        oldest_s,
    )
    metrics.value(
        "ottla_transactions_committed",
        "Transactions that were committed by this coordinator since it started.",
        lambda: transactions.committed,
    )
    metrics.value(
        "ottla_transactions_aborted",
        "Transactions that were aborted by this coordinator since it started, for whatever reason.",
        lambda: transactions.aborted,
    )
    metrics.value(
        "ottla_transaction_markers_waiting",
        "Partitions that have not been told yet how a transaction ended.",
        lambda: transactions.markers.waiting,
    )
