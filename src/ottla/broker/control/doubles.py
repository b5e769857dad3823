"""Two nodes with one number. Voters of a setting are known by their number alone: a second one that
fetches from another disk while the first still does is not let in.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.ports import Clock
from ottla.quorum.state import NO_DIRECTORY_ID
from ottla.quorum.voters import ReplicaKey, VoterSet


class Doubles:
    """Asked by whoever leads the metadata log, at each fetch of it."""

    def __init__(
        self, own: ReplicaKey, voters: Callable[[], VoterSet], clock: Clock, window_ms: int
    ) -> None:
        self._own = own
        self._voters = voters
        self._clock = clock
        self._window_ms = window_ms
        # By voter the disk that has fetched last, and when.
        self._fetched: dict[int, tuple[bytes, int]] = {}

    def has_double(self, replica: ReplicaKey) -> bool:
        if replica.id == self._own.id:
            return replica.directory_id != self._own.directory_id
        voter = self._voters().get(replica.id)
        if voter is None or voter.key.directory_id != NO_DIRECTORY_ID:
            return False
        now_ms = self._clock.now().steady_ms
        directory_id, fetched_ms = self._fetched.get(replica.id, (replica.directory_id, 0))
        if directory_id != replica.directory_id and now_ms - fetched_ms < self._window_ms:
            return True
        self._fetched[replica.id] = (replica.directory_id, now_ms)
        return False
