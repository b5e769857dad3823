"""A voter's number belongs to one disk at a time."""

from __future__ import annotations

from ottla.broker.control.doubles import Doubles
from ottla.quorum.voters import ReplicaKey, Voter, VoterSet
from ottla.types import NodeId, Now

ONE, TWO, STRANGER = NodeId(1), NodeId(2), NodeId(9)


class HandClock:
    def __init__(self) -> None:
        self.ms = 0

    def now(self) -> Now:
        return Now(self.ms, self.ms)

    def wall_ms(self) -> int:
        return self.ms

    def steady_s(self) -> float:
        return self.ms / 1000


def doubles(clock: HandClock, *, with_directory: bool = False) -> Doubles:
    directory = b"a" * 16 if with_directory else bytes(16)
    voters = VoterSet([Voter(ReplicaKey(ONE)), Voter(ReplicaKey(TWO, directory))])
    return Doubles(ReplicaKey(ONE, b"1" * 16), lambda: voters, clock, window_ms=2000)


def test_a_second_disk_is_refused_while_the_first_fetches() -> None:
    clock = HandClock()
    known = doubles(clock)
    first, second = ReplicaKey(TWO, b"a" * 16), ReplicaKey(TWO, b"b" * 16)
    for clock.ms in range(10_000, 20_000, 500):
        assert not known.has_double(first)
        assert known.has_double(second)


def test_a_node_with_a_new_disk_is_let_in_when_the_old_one_is_silent() -> None:
    clock = HandClock()
    known = doubles(clock)
    assert not known.has_double(ReplicaKey(TWO, b"a" * 16))
    clock.ms += 2000
    assert not known.has_double(ReplicaKey(TWO, b"b" * 16))
    assert known.has_double(ReplicaKey(TWO, b"a" * 16))


def test_nobody_follows_a_leader_under_its_own_number() -> None:
    known = doubles(HandClock())
    assert known.has_double(ReplicaKey(ONE, b"b" * 16))


def test_voters_of_the_log_are_told_apart_by_their_disks_and_observers_have_no_say() -> None:
    known = doubles(HandClock(), with_directory=True)
    for directory in (b"a", b"b", b"a"):
        assert not known.has_double(ReplicaKey(TWO, directory * 16))
        assert not known.has_double(ReplicaKey(STRANGER, directory * 16))
