from __future__ import annotations

import json

import pytest

from ottla.quorum.state import (
    QuorumState,
    UnreadableQuorumState,
    decode_state,
    encode_state,
)


def test_the_state_is_stored_in_kafkas_form():
    state = QuorumState(
        leader_id=-1, leader_epoch=2, voted_id=1, voted_directory_id=bytes(range(16))
    )
    assert encode_state(state) == (
        b'{"leaderId":-1,"leaderEpoch":2,"votedId":1,'
        b'"votedDirectoryId":"AAECAwQFBgcICQoLDA0ODw","data_version":1}'
    )
    assert decode_state(encode_state(state)) == state


def test_version_0_of_the_file_is_read():
    old = {
        "clusterId": "",
        "leaderId": 1,
        "leaderEpoch": 2,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [],
        "data_version": 0,
    }
    assert decode_state(json.dumps(old).encode()) == QuorumState(leader_id=1, leader_epoch=2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"data_version":2,"leaderId":1,"leaderEpoch":1,"votedId":-1}',
        b'{"data_version":1,"leaderId":1}',
        b'{"data_version":1,"leaderId":"x","leaderEpoch":1,"votedId":-1}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_quorum_state_stops_the_start_with_a_reason(data):
    with pytest.raises(UnreadableQuorumState, match="quorum-state"):
        decode_state(data)
