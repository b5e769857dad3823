"""What a follower tells its leader of the partitions it wants."""

from __future__ import annotations

from ottla.broker.replication.session import LeaderSession
from ottla.errors import ErrorCode
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, ReplicaState

ORDERS, CLICKS = b"o" * 16, b"c" * 16


def session() -> LeaderSession:
    return LeaderSession(ReplicaState(2, 7), wait_ms=500, min_bytes=1, max_bytes=1000)


def at(index: int, offset: int) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=100)


def told(request: FetchRequest) -> list[tuple[bytes, int, int]]:
    return [
        (topic.topic_id, asked.partition, asked.fetch_offset)
        for topic in request.topics
        for asked in topic.partitions
    ]


def forgotten(request: FetchRequest) -> list[tuple[bytes, int]]:
    return [
        (topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


def begun() -> LeaderSession:
    """A session that the leader has opened, with two partitions."""
    follower = session()
    follower.want((ORDERS, 0), at(0, 5))
    follower.want((CLICKS, 3), at(3, 9))
    request = follower.request()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert (request.max_bytes, request.min_bytes, request.max_wait_ms) == (1000, 1, 500)
    assert told(request) == [(ORDERS, 0, 5), (CLICKS, 3, 9)]
    assert follower.answered(FetchResponse(session_id=44))
    return follower


def test_a_quiet_round_names_nothing() -> None:
    follower = begun()
    request = follower.request()
    assert (request.session_id, request.session_epoch) == (44, 1)
    assert (told(request), forgotten(request)) == ([], [])
    follower.answered(FetchResponse(session_id=44))
    assert follower.request().session_epoch == 2


def test_only_what_moved_is_named() -> None:
    follower = begun()
    follower.want((CLICKS, 3), at(3, 12))
    assert told(follower.request()) == [(CLICKS, 3, 12)]


def test_what_is_dropped_is_forgotten_once() -> None:
    follower = begun()
    follower.drop((ORDERS, 0))
    assert forgotten(follower.request()) == [(ORDERS, 0)]
    follower.answered(FetchResponse(session_id=44))
    assert forgotten(follower.request()) == []
    assert len(follower) == 1


def test_what_comes_back_before_the_next_round_is_not_forgotten() -> None:
    follower = begun()
    follower.drop((ORDERS, 0))
    follower.want((ORDERS, 0), at(0, 6))
    request = follower.request()
    assert (told(request), forgotten(request)) == ([(ORDERS, 0, 6)], [])


def test_a_lost_session_begins_anew_with_everything() -> None:
    follower = begun()
    follower.want((ORDERS, 0), at(0, 6))
    follower.request()
    assert not follower.answered(
        FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=44)
    )
    request = follower.request()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert told(request) == [(ORDERS, 0, 6), (CLICKS, 3, 9)]


def test_a_leader_without_room_for_sessions_is_told_everything_each_time() -> None:
    follower = session()
    follower.want((ORDERS, 0), at(0, 5))
    for _ in range(3):
        request = follower.request()
        assert request.session_epoch == 0
        assert told(request) == [(ORDERS, 0, 5)]
        assert follower.answered(FetchResponse(session_id=0))
