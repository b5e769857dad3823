"""The transaction coordinator: who may, what is decided when, and what a failover finds."""

from __future__ import annotations

import pytest

from ottla.coordinators.transaction_states import NEXT, PREPARED, TransactionEvent
from ottla.coordinators.transaction_states import TransactionState as S
from ottla.errors import ErrorCode
from unit.coordinators.transaction_kit import FIRST_FRESH_ID, A, B, TransactionShard

WITH_EPOCHS = {"version": 5}
DAY_MS = 24 * 3_600_000


@pytest.fixture
def shard() -> TransactionShard:
    return TransactionShard()


def ongoing(shard: TransactionShard, client_version: int = 0) -> tuple[int, int]:
    identity = shard.identity()
    assert shard.add(identity, client_version=client_version) is ErrorCode.NONE
    return identity


# ---------------------------------------------------------------------------------------- identity


def test_a_new_id_gets_a_producer_id_and_epoch_zero(shard):
    assert shard.identity() == (FIRST_FRESH_ID + 1, 0)
    assert shard.identity("other") == (FIRST_FRESH_ID + 2, 0)


def test_whoever_comes_next_fences_who_was_before(shard):
    first = shard.identity()
    second = shard.identity()
    assert second == (first[0], first[1] + 1)
    assert shard.add(first) is ErrorCode.PRODUCER_FENCED
    assert shard.add(second) is ErrorCode.NONE
    assert shard.ended(first) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_time_out_that_no_transaction_may_have_is_refused(shard, timeout_ms):
    reply = shard.init(timeout_ms=timeout_ms)
    assert reply.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not shard.log


@pytest.mark.parametrize("name", ["", "x" * 40_000])
def test_names_that_cannot_be_written_are_refused(shard, name):
    assert shard.init(name).error_code == ErrorCode.INVALID_REQUEST


def test_a_producer_that_names_itself_goes_on_and_its_repetition_gets_the_same(shard):
    before = shard.identity()
    after = shard.identity(identity=before)
    assert after == (before[0], before[1] + 1)
    assert shard.identity(identity=before) == after
    assert shard.init(identity=(before[0], 7)).error_code == ErrorCode.PRODUCER_FENCED
    assert shard.init(identity=(4711, 0)).error_code == ErrorCode.PRODUCER_FENCED


def test_a_fenced_producer_that_names_itself_does_not_come_back(shard):
    before = shard.identity()
    shard.identity()
    assert shard.init(identity=before).error_code == ErrorCode.PRODUCER_FENCED


def test_an_ongoing_transaction_is_aborted_before_the_next_producer_begins(shard):
    before = ongoing(shard)
    assert shard.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.of().state is S.PREPARE_ABORT
    assert shard.of().epoch == before[1] + 1
    assert shard.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.mark()
    assert shard.identity() == (before[0], before[1] + 2)


def test_after_the_last_epoch_comes_a_new_producer_id(shard):
    identity = shard.identity()
    while identity[1] < 32_766:
        identity = shard.identity()
    assert shard.identity() == (identity[0] + 1, 0)


def test_a_fence_at_the_last_epoch_of_clients_takes_the_coordinators_own(shard):
    identity = shard.identity()
    while identity[1] < 32_766:
        identity = shard.identity()
    shard.add(identity)
    assert shard.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.of().epoch == 32_767
    shard.mark()
    assert shard.ended(identity, commit=False, **WITH_EPOCHS) is ErrorCode.PRODUCER_FENCED
    assert shard.identity() == (identity[0] + 1, 0)


# -------------------------------------------------------------------------------------- partitions


def test_partitions_are_added_once_and_written_only_when_they_are_new(shard):
    identity = ongoing(shard)
    written = len(shard.log)
    assert shard.add(identity, A) is ErrorCode.NONE
    assert len(shard.log) == written
    assert shard.add(identity, A, B) is ErrorCode.NONE
    assert shard.of().partitions == {A, B}
    assert len(shard.log) == written + 1


def test_only_what_was_added_to_this_transaction_is_verified(shard):
    identity = ongoing(shard)
    verdict = shard.machine.verify("t", *identity, (A, B))
    assert verdict == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    shard.end(identity)
    assert set(shard.machine.verify("t", *identity, (A,)).values()) == {
        ErrorCode.CONCURRENT_TRANSACTIONS
    }
    shard.mark()
    assert shard.machine.verify("t", *identity, (A,)) == {A: ErrorCode.TRANSACTION_ABORTABLE}
    assert shard.machine.verify("t", identity[0], 9, (A,)) == {A: ErrorCode.PRODUCER_FENCED}
    assert shard.machine.verify("t", 1, 0, (A,)) == {A: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert shard.machine.verify("u", *identity, (A,)) == {A: ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_nothing_is_added_while_the_one_before_is_being_ended(shard):
    identity = ongoing(shard)
    shard.end(identity)
    assert shard.add(identity, B) is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.mark()
    assert shard.add(identity, B) is ErrorCode.NONE
    assert shard.of().partitions == {B}


# ------------------------------------------------------------------------------------------ the end


@pytest.mark.parametrize("commit", [True, False])
def test_the_decision_is_one_record_and_the_end_another(shard, commit):
    identity = ongoing(shard)
    assert shard.ended(identity, commit=commit) is ErrorCode.NONE
    prepared = S.PREPARE_COMMIT if commit else S.PREPARE_ABORT
    complete = S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT
    assert shard.of().state is prepared
    assert shard.of().partitions == {A}
    assert shard.ended(identity, commit=commit) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.ended(identity, commit=not commit) is ErrorCode.INVALID_TXN_STATE
    assert shard.mark()
    states = [record.transaction.state for record in shard.written()]
    assert states == [S.EMPTY, S.ONGOING, prepared, complete]
    assert shard.ended(identity, commit=commit) is ErrorCode.NONE
    assert shard.ended(identity, commit=not commit) is ErrorCode.INVALID_TXN_STATE
    assert len(shard.log) == 4


def test_without_a_beginning_there_is_no_end(shard):
    identity = shard.identity()
    assert shard.ended(identity) is ErrorCode.INVALID_TXN_STATE
    assert shard.ended(identity, commit=False) is ErrorCode.INVALID_TXN_STATE
    assert shard.ended(identity, name="u") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shard.ended((1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_markers_of_a_transaction_that_is_over_complete_nothing(shard):
    identity = ongoing(shard)
    shard.end(identity)
    prepared = shard.of()
    assert shard.mark()
    assert not shard.mark(prepared=prepared)
    shard.add(identity)
    assert not shard.mark(prepared=prepared)
    assert shard.of().state is S.ONGOING


# ------------------------------------------------------------------- an epoch for each transaction


def test_each_transaction_has_an_epoch_of_its_own(shard):
    producer_id, epoch = ongoing(shard, client_version=2)
    reply = shard.end((producer_id, epoch), **WITH_EPOCHS)
    assert (reply.producer_id, reply.producer_epoch) == (producer_id, epoch + 1)
    assert shard.of().epoch == epoch + 1
    shard.mark()
    assert shard.add((producer_id, epoch)) is ErrorCode.PRODUCER_FENCED
    assert shard.add((producer_id, epoch + 1)) is ErrorCode.NONE


def test_a_late_end_of_an_earlier_transaction_does_not_end_the_next_one(shard):
    """The hole that Jepsen found: with one epoch for all, the late commit would count."""
    first = ongoing(shard, client_version=2)
    reply = shard.end(first, **WITH_EPOCHS)
    second = (reply.producer_id, reply.producer_epoch)
    shard.mark()
    shard.add(second, client_version=2)
    assert shard.ended(first, **WITH_EPOCHS) is ErrorCode.PRODUCER_FENCED
    assert shard.ended(first, commit=False, **WITH_EPOCHS) is ErrorCode.PRODUCER_FENCED
    assert shard.of().state is S.ONGOING


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_is_answered_as_the_first_was(shard, commit):
    first = ongoing(shard, client_version=2)
    reply = shard.end(first, commit=commit, **WITH_EPOCHS)
    again = {"commit": commit, **WITH_EPOCHS}
    assert shard.ended(first, **again) is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.mark()
    assert shard.end(first, **again) == reply
    other = {"commit": not commit, **WITH_EPOCHS}
    assert shard.ended(first, **other) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("commit", [True, False])
def test_who_ends_the_next_one_before_the_markers_are_written_asks_again(shard, commit):
    """As franz-go does: it aborts what it has just begun."""
    first = ongoing(shard, client_version=2)
    reply = shard.end(first, **WITH_EPOCHS)
    second = (reply.producer_id, reply.producer_epoch)
    early = shard.ended(second, commit=commit, **WITH_EPOCHS)
    assert early is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.mark()
    if not commit:
        assert shard.ended(second, commit=False, **WITH_EPOCHS) is ErrorCode.NONE


def test_a_transaction_without_partitions_can_be_aborted_and_not_committed(shard):
    identity = shard.identity()
    assert shard.ended(identity, **WITH_EPOCHS) is ErrorCode.INVALID_TXN_STATE
    for _ in range(2):
        reply = shard.end(identity, commit=False, **WITH_EPOCHS)
        assert not reply.error_code
        assert shard.of().state is S.PREPARE_ABORT
        assert not shard.of().partitions
        shard.mark()
        identity = (reply.producer_id, reply.producer_epoch)


def test_after_the_last_epoch_the_end_answers_with_a_new_producer_id(shard):
    identity = shard.identity()
    while identity[1] < 32_766:
        identity = shard.identity()
    shard.add(identity, client_version=2)
    reply = shard.end(identity, **WITH_EPOCHS)
    assert (reply.producer_id, reply.producer_epoch) == (identity[0] + 1, 0)
    # The markers are still of the id that has written, under the epoch that no client has.
    assert (shard.of().producer_id, shard.of().epoch) == (identity[0], 32_767)
    shard.fail_over()
    shard.mark()
    assert (shard.of().producer_id, shard.of().epoch) == (identity[0] + 1, 0)
    assert shard.end(identity, **WITH_EPOCHS) == reply


# --------------------------------------------------------------------------------- time, failovers


def test_a_transaction_that_takes_too_long_is_aborted_under_a_new_epoch(shard):
    identity = ongoing(shard)
    shard.pass_ms(59_999)
    assert shard.of().state is S.ONGOING
    shard.pass_ms(1)
    assert shard.of().state is S.PREPARE_ABORT
    assert shard.of().epoch == identity[1] + 1
    assert shard.ended(identity) is ErrorCode.PRODUCER_FENCED
    assert shard.machine.timed_out == 1


def test_time_counts_from_the_first_partition_and_goes_on_over_a_failover(shard):
    identity = shard.identity()
    shard.pass_ms(50_000)
    shard.add(identity)
    shard.pass_ms(40_000)
    shard.add(identity, B)
    shard.fail_over()
    shard.pass_ms(19_999)
    assert shard.of().state is S.ONGOING
    shard.pass_ms(1)
    assert shard.of().state is S.PREPARE_ABORT


def test_a_transaction_that_ended_in_time_does_not_cost_the_next_one_its_time(shard):
    identity = ongoing(shard)
    shard.pass_ms(30_000)
    shard.end(identity)
    shard.mark()
    shard.add(identity)
    shard.pass_ms(59_999)
    assert shard.of().state is S.ONGOING
    shard.pass_ms(1)
    assert shard.of().state is S.PREPARE_ABORT


def test_what_was_decided_is_found_after_a_failover(shard):
    identity = ongoing(shard)
    shard.end(identity)
    shard.fail_over()
    assert shard.of().state in PREPARED
    assert shard.of().partitions == {A}
    shard.pass_ms(10 * 60_000)
    assert shard.of().state is S.PREPARE_COMMIT
    assert shard.mark()
    assert shard.ended(identity) is ErrorCode.NONE


def test_ids_that_nobody_uses_are_forgotten_and_open_ones_are_not(shard):
    shard.identity("idle")
    shard.end(ongoing(shard))
    for _ in range(7 * 24 + 2):
        shard.pass_ms(3_600_000)
    assert list(shard.machine.transactions) == ["t"]
    assert shard.written()[-1] == ("idle", None)
    shard.mark()
    for _ in range(7 * 24 + 2):
        shard.pass_ms(3_600_000)
    assert not shard.machine.transactions
    assert shard.replayed().snapshot() == {}


def test_tools_see_states_and_find_what_is_open_for_long(shard):
    identity = ongoing(shard)
    shard.identity("other")
    shard.pass_ms(30_000)
    described = shard.machine.describe("t")
    assert described.transaction_state == "Ongoing"
    assert [(t.topic, t.partitions) for t in described.topics] == [("orders", [0])]
    assert (described.producer_id, described.producer_epoch) == identity
    assert shard.machine.describe("no").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    listed = shard.machine.list_transactions

    def names(*filters):
        return [each.transactional_id for each in listed(*filters, shard.now)]

    assert names([], [], -1) == ["t", "other"]
    assert names(["Ongoing"], [], -1) == ["t"]
    assert names([], [identity[0]], 29_999) == ["t"]
    assert names(["Ongoing"], [], 30_000) == []
    assert shard.machine.oldest_start_ms() == shard.wall_ms - 30_000


def test_every_way_leads_to_a_state_that_has_a_next_one():
    for (state, event), following in NEXT.items():
        assert (state in PREPARED) == (event is TransactionEvent.MARKED)
        assert any(state is following for state, _ in NEXT)
