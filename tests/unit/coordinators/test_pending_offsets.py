"""Positions in transactions: they count from their marker on, or never."""

from __future__ import annotations

import pytest

from ottla.coordinators.group_records import OffsetRecord
from ottla.errors import ErrorCode
from ottla.machine import InTransaction, TransactionEnded
from ottla.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

PRODUCER, OTHER = (7, 0), (8, 0)


class Transactions:
    """A shard with records in transactions and markers, as the runtime applies them."""

    def __init__(self, shard) -> None:
        self.shard = shard
        self.log = []

    def commit(self, offset, *, producer=PRODUCER, group="g", member="", generation=-1):
        partition = TxnOffsetCommitRequestPartition(0, offset, -1, None)
        request = TxnOffsetCommitRequest(
            "t",
            group,
            *producer,
            generation,
            member,
            None,
            [TxnOffsetCommitRequestTopic("orders", [partition])],
        )
        decision = self.shard.machine.commit_in_transaction(
            request, None, lambda topic, index: True, self.shard.now, object()
        )
        self._apply(decision.records)
        return ErrorCode(decision.replies[0][1].topics[0].partitions[0].error_code)

    def end(self, *, is_commit, producer=PRODUCER):
        self._apply([TransactionEnded(*producer, is_commit)])

    def _apply(self, records):
        for record in records:
            self.log.append(record)
            self.shard.machine.apply(record, self.shard.wall_ms)

    def committed(self, *, stable=False, group="g"):
        asked = OffsetFetchRequestGroup(
            group_id=group, topics=[OffsetFetchRequestTopics("orders", [0])]
        )
        reply = self.shard.machine.fetch_offsets(asked, require_stable=stable)
        found = reply.topics[0].partitions[0]
        return ErrorCode(found.error_code) if found.error_code else found.committed_offset


@pytest.fixture
def transactions(shard) -> Transactions:
    return Transactions(shard)


def test_a_position_counts_from_the_commit_of_its_transaction_on(transactions):
    assert transactions.commit(5) is ErrorCode.NONE
    assert transactions.committed() == -1
    assert transactions.committed(stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    transactions.end(is_commit=True)
    assert transactions.committed() == transactions.committed(stable=True) == 5


def test_what_is_aborted_never_counts(transactions):
    transactions.commit(3)
    transactions.end(is_commit=True)
    transactions.commit(9)
    transactions.end(is_commit=False)
    assert transactions.committed(stable=True) == 3


def test_a_marker_decides_of_its_own_producer_only(transactions):
    transactions.commit(3)
    transactions.commit(9, producer=OTHER)
    transactions.end(is_commit=True, producer=OTHER)
    assert transactions.committed() == 9
    assert transactions.committed(stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    transactions.end(is_commit=False)
    assert transactions.committed(stable=True) == 9


def test_a_later_commit_outside_stays_when_the_transaction_is_committed(transactions):
    transactions.commit(3)
    transactions.shard.commit(8, topic="orders")
    transactions.end(is_commit=True)
    assert transactions.committed() == 8


def test_a_group_that_has_moved_on_refuses_its_former_members(transactions, shard):
    (member,) = shard.stable(1)
    assert transactions.commit(1, member=member, generation=1) is ErrorCode.NONE
    assert transactions.commit(2, member=member, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert transactions.commit(2, member="gone", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    # Clients from before KIP-447 name nobody.
    assert transactions.commit(2) is ErrorCode.NONE
    assert transactions.commit(2, group="no", generation=3) is ErrorCode.ILLEGAL_GENERATION


def test_a_deleted_group_does_not_come_back_with_a_marker(transactions, shard):
    shard.commit(1, topic="orders")
    transactions.commit(5)
    assert shard.delete_groups("g") == [ErrorCode.NONE]
    transactions.end(is_commit=True)
    assert transactions.committed() == -1


def test_what_is_pending_is_the_fold_over_the_log(transactions, shard):
    transactions.commit(5)
    transactions.commit(6, producer=OTHER)
    transactions.end(is_commit=True)
    again = shard.replayed()
    for record in transactions.log:
        again.apply(record, shard.wall_ms)
    assert again.snapshot()["pending"] == shard.machine.snapshot()["pending"]
    kept = [each for each in transactions.log if isinstance(each, InTransaction)]
    assert all(isinstance(each.record, OffsetRecord) for each in kept)
