from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cluster.placement import Candidate, Host, place
from ottla.errors import InvalidReplicationFactor


def brokers(*racks):
    """Each on a host of its own."""
    return [on_host(number, rack, f"host-{number}") for number, rack in enumerate(racks)]


def on_host(number, rack, name):
    return Candidate(number, rack, Host(rack, frozenset({name})))


@pytest.fixture(scope="module")
def random_of():
    import random

    class Seeded:
        def __init__(self, seed):
            self._source = random.Random(seed)

        def bytes(self, count):
            return self._source.randbytes(count)

        def below(self, bound):
            return self._source.randrange(bound)

    return Seeded


def test_a_single_broker_gets_everything(random_of):
    assert place(brokers(None), 3, 1, random_of(0)) == [(0,), (0,), (0,)]


def test_more_replicas_than_brokers_cannot_be_placed(random_of):
    with pytest.raises(InvalidReplicationFactor, match=r"only 2 broker\(s\)"):
        place(brokers(None, None), 1, 3, random_of(0))


def test_no_replica_at_all_cannot_be_placed(random_of):
    with pytest.raises(InvalidReplicationFactor):
        place(brokers(None), 1, 0, random_of(0))


def test_partitions_with_the_same_leader_have_different_followers(random_of):
    placed = place(brokers(*[None] * 6), 30, 2, random_of(3))
    followers = {replicas[1] for replicas in placed if replicas[0] == 0}
    assert len(followers) == 5


def test_the_same_seed_places_the_same(random_of):
    ring = brokers("a", "b", "a", "c")
    assert place(ring, 20, 3, random_of(7)) == place(ring, 20, 3, random_of(7))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_replicas_are_distinct_even_and_on_as_many_racks_as_there_are(random_of, data, seed):
    racks = data.draw(st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9))
    factor = data.draw(st.integers(1, len(racks)))
    partitions = data.draw(st.integers(1, 30))
    placed = place(brokers(*racks), partitions, factor, random_of(seed))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        on = {racks[broker] for broker in replicas}
        assert len(on) == min(factor, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in placed)
    most, least = max(leaders.values()), min(leaders[broker] for broker in range(len(racks)))
    assert most - least <= 1


def test_replicas_never_share_a_host(random_of):
    """Two workers on each of three hosts, in two zones."""
    workers = [
        on_host(1000 * worker + host, zone, f"host-{host}")
        for host, zone in ((1, "a"), (2, "a"), (3, "b"))
        for worker in (0, 1)
    ]
    placed = place(workers, 60, 3, random_of(1))
    assert all(sorted(node % 1000 for node in replicas) == [1, 2, 3] for replicas in placed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {10}
    with pytest.raises(InvalidReplicationFactor, match=r"on 3 host\(s\)"):
        place(workers, 1, 4, random_of(1))
