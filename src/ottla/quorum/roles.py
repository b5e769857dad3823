"""What a node can be in an epoch, and what it can become.

Whether it votes is another question, which the voters in its log answer: a node that does not is an
observer, and is unattached or follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Role(Enum):
    UNATTACHED = "unattached"  # knows the epoch, and no leader
    VOTED = "voted"  # the same, and has given its vote in it
    PROSPECTIVE = "prospective"  # asks whether it would be elected
    CANDIDATE = "candidate"  # has voted for itself and asks for votes
    LEADER = "leader"
    RESIGNED = "resigned"  # has led the epoch and leads no more
    FOLLOWER = "follower"


# Within one epoch.
NEXT: Final[Mapping[Role, frozenset[Role]]] = {
    Role.UNATTACHED: frozenset({Role.VOTED, Role.PROSPECTIVE, Role.FOLLOWER}),
    Role.VOTED: frozenset({Role.PROSPECTIVE, Role.FOLLOWER}),
    Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.VOTED, Role.FOLLOWER}),
    Role.CANDIDATE: frozenset({Role.PROSPECTIVE, Role.LEADER, Role.FOLLOWER}),
    Role.LEADER: frozenset({Role.RESIGNED}),
    Role.RESIGNED: frozenset(),
    Role.FOLLOWER: frozenset({Role.PROSPECTIVE}),
}
# Into a higher one: anybody learns of it, and only who would be elected makes one.
NEXT_EPOCH: Final[Mapping[Role, frozenset[Role]]] = {
    role: frozenset({Role.UNATTACHED, Role.FOLLOWER})
    | ({Role.CANDIDATE} if role is Role.PROSPECTIVE else frozenset())
    for role in Role
}
