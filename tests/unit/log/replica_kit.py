"""What the tests of replication share: a leader's bytes, and a follower that takes them."""

from __future__ import annotations

from ottla.log.log import Log
from ottla.log.producer_state import ProducerState
from ottla.types import NO_EPOCH, LeaderEpoch
from ottla.wire.records import headers_in
from unit.log.house import NOW_MS

FOLLOWER = "/data/f-0"
ANY_EPOCH = LeaderEpoch(2**31 - 1)


def given_to_replicas(log: Log, offset: int | None = None, max_bytes: int = 10_000) -> bytes:
    """Every batch from an offset on, those without records included."""
    offset, found = log.start_offset if offset is None else offset, b""
    while offset < log.written.offset:
        data = log.read(offset, max_bytes, log.written, cached_only=False, with_empty=True)
        assert data, f"nothing at {offset}"
        for at, header in headers_in(data):
            found += bytes(data[at : at + header.size])
            offset = header.next_offset
    return found


def take(log: Log, data: bytes, epoch_max: int = ANY_EPOCH) -> int:
    """As it comes from a network: in a buffer of its own."""
    return log.append_replicated(memoryview(bytearray(data)), LeaderEpoch(epoch_max), NOW_MS)


def follow(follower: Log, leader: Log) -> None:
    """Fetches until there is no more."""
    while follower.end_offset < leader.written.offset:
        data = leader.read(
            follower.end_offset, 1000, leader.written, cached_only=False, with_empty=True
        )
        assert data
        assert take(follower, bytes(data)) > 0
    follower.write()


def replayed(data: bytes) -> tuple[list[tuple[int, int]], ProducerState]:
    """The epochs and the producers that batches tell of."""
    epochs: list[tuple[int, int]] = []
    producers = ProducerState()
    for at, header in headers_in(data):
        if not epochs or header.leader_epoch != epochs[-1][0]:
            epochs.append((header.leader_epoch, header.base_offset))
        producers.replay(header, data[at : at + header.size], NOW_MS)
    return epochs, producers


def check_replica(log: Log, data: bytes) -> None:
    """The log has these batches and nothing else, and knows what they tell.

    An epoch in which nothing is written yet is no matter of the batches.
    """
    epochs, producers = replayed(data)
    assert given_to_replicas(log) == data
    assert [entry for entry in log._epochs.entries if entry[1] < log.end_offset] == epochs
    assert log.last_batch_epoch == (epochs[-1][0] if epochs else NO_EPOCH)
    assert log._producers.encode() == producers.encode()
