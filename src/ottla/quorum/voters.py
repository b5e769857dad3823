"""Who votes on the metadata log: sets of voters, and which of them stands at which offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ottla.quorum.state import NO_DIRECTORY_ID
from ottla.quorum.values import Value
from ottla.types import NodeId, Offset

# Voters that come from a setting, or from the formatting of the disk, stand before the log.
BEFORE_THE_LOG: Final = Offset(-1)


class ReplicaKey(NamedTuple):
    """A node together with its disk: with another disk it is another replica."""

    id: NodeId
    directory_id: bytes = NO_DIRECTORY_ID


class Endpoint(NamedTuple):
    name: str
    host: str
    port: int


class Voter(Value):
    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    kraft_version_min: int = 0
    kraft_version_max: int = 1


class VoterSet:
    """The voters in the order of their ids; never changed, only replaced."""

    __slots__ = ("_by_id", "keys", "majority")

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._by_id = {voter.key.id: voter for voter in sorted(voters, key=lambda v: v.key)}
        self.keys: tuple[ReplicaKey, ...] = tuple(voter.key for voter in self._by_id.values())
        self.majority = len(self.keys) // 2 + 1

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._by_id.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._by_id == other._by_id

    def __hash__(self) -> int:
        return hash(tuple(self._by_id.values()))

    def __repr__(self) -> str:
        return f"VoterSet({list(self._by_id)})"

    def get(self, node_id: NodeId) -> Voter | None:
        return self._by_id.get(node_id)

    def key_of(self, replica: ReplicaKey) -> ReplicaKey | None:
        """The key under which this replica votes; None when it does not.

        Voters of a setting have no directory, and are known by their id alone.
        """
        voter = self._by_id.get(replica.id)
        if voter is None or voter.key.directory_id not in (NO_DIRECTORY_ID, replica.directory_id):
            return None
        return voter.key

    def with_voter(self, voter: Voter) -> VoterSet:
        """With this one added, or in the place of the one with its id."""
        return VoterSet({**self._by_id, voter.key.id: voter}.values())

    def without(self, node_id: NodeId) -> VoterSet:
        return VoterSet(voter for voter in self if voter.key.id != node_id)

    def updated(self, voter: Voter) -> VoterSet | None:
        """With new endpoints and versions of a voter; None when it is no voter."""
        key = self.key_of(voter.key)
        if key is None:
            return None
        versions = (voter.kraft_version_min, voter.kraft_version_max)
        return self.with_voter(Voter(key, voter.endpoints, *versions))


class Standing(NamedTuple):
    """A set of voters, and the offset of its record."""

    offset: Offset
    voters: VoterSet


class VoterHistory:
    """The sets of voters in the log; the last one counts, committed or not (KIP-853)."""

    def __init__(self, voters: VoterSet, *, can_change: bool) -> None:
        """`can_change` is kraft.version 1: the voters are records and not a setting."""
        self._could_change = can_change
        self._standings = [Standing(BEFORE_THE_LOG, voters)]

    @property
    def can_change(self) -> bool:
        return self._could_change or self.last.offset != BEFORE_THE_LOG

    @property
    def last(self) -> Standing:
        return self._standings[-1]

    def append(self, offset: Offset, voters: VoterSet) -> None:
        """A record of voters is in the log; one at this offset or after it is no more."""
        self.cut(offset)
        self._standings.append(Standing(offset, voters))

    def cut(self, end_offset: Offset) -> None:
        """The log ends here now: the records from there on are gone."""
        while len(self._standings) > 1 and self._standings[-1].offset >= end_offset:
            self._standings.pop()

    def at(self, end_offset: int) -> VoterSet | None:
        """Those of a log that ends there; None while they are a setting (kraft.version 0)."""
        offset, voters = next(
            each for each in reversed(self._standings) if each.offset < end_offset
        )
        return voters if offset != BEFORE_THE_LOG or self._could_change else None

    def forget_before(self, offset: int) -> None:
        """A snapshot tells what stood there, so nobody asks for what stood before."""
        while len(self._standings) > 1 and self._standings[1].offset < offset:
            del self._standings[0]
