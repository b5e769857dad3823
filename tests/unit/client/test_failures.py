"""Refusals in the house's own words, and which of them pass."""

from __future__ import annotations

import pickle

import pytest

from ottla import errors
from ottla.client import failures
from ottla.client.failures import ConnectionLost, PartitionsFailed, Refused, is_passing, refusal
from ottla.errors import ErrorCode
from ottla.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code])
def test_every_code_becomes_an_error_that_names_itself_and_its_place(code):
    error = refusal(code, A, "a note")
    assert str(error) == f"a-0: {code.name} (a note)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_codes_become_the_errors_of_the_house():
    assert type(refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, A)) is errors.NotLeader
    assert type(refusal(ErrorCode.INVALID_RECORD, A)) is errors.InvalidRecord
    assert type(refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, A)) is Refused
    assert str(refusal(4711, A)) == "a-0: error 4711"


def test_what_passes_and_what_does_not():
    assert is_passing(ConnectionLost("gone"))
    assert is_passing(refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, A))
    assert is_passing(refusal(ErrorCode.NOT_ENOUGH_REPLICAS, A))
    assert not is_passing(refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, A))
    assert not is_passing(ValueError())
    unknown = refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, A)
    assert is_passing(unknown, soon=True)
    assert not is_passing(unknown)


def test_what_does_not_pass_hides_what_might():
    moved = refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, A)
    forbidden = refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, B)
    assert failures.together({A: moved, B: forbidden}) is forbidden
    both = failures.together({A: moved, B: refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, B)})
    assert isinstance(both, PartitionsFailed)
    assert is_passing(both)
    assert "a-0: NOT_LEADER_OR_FOLLOWER; b-1: NOT_LEADER_OR_FOLLOWER" in str(both)


def test_only_the_first_of_many_partitions_are_named():
    many = {TopicPartition("t", at): refusal(1, TopicPartition("t", at)) for at in range(12)}
    assert "12 partitions failed" in str(failures.together(many))
    assert str(failures.together(many)).endswith("and 2 more")


def test_an_offset_out_of_range_tells_all_its_numbers_even_pickled():
    error = pickle.loads(pickle.dumps(failures.OffsetOutOfRange(A, 5, 10, 20)))
    assert str(error) == "a-0: offset 5 is wanted, available are 10 to 20"
    assert isinstance(error, errors.OffsetOutOfRange)
