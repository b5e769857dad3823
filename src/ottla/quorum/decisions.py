"""What the quorum decides; carried out in the order given, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ottla.errors import ErrorCode
from ottla.quorum.state import QuorumState
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterSet
from ottla.types import NodeId, Offset


@dataclass(frozen=True, slots=True)
class Save:
    """Must be on stable storage before the next decision is looked at."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class AskVote:
    """Send Vote; answered by VoteAnswered or RequestFailed."""

    peer: ReplicaKey
    epoch: int
    pre_vote: bool
    last_epoch: int
    last_offset: Offset


@dataclass(frozen=True, slots=True)
class AnnounceEpoch:
    """Send BeginQuorumEpoch with this node as the leader; answered by Acknowledged."""

    peer: ReplicaKey
    epoch: int


@dataclass(frozen=True, slots=True)
class EndEpoch:
    """Send EndQuorumEpoch; answered by Acknowledged."""

    peer: ReplicaKey
    epoch: int
    successors: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class AskUpdate:
    """Send UpdateRaftVoter about this node to the leader; answered by Acknowledged."""

    leader_id: NodeId
    epoch: int
    voter: Voter


@dataclass(frozen=True, slots=True)
class Lead:
    """This node leads the epoch: append a LeaderChangeMessage, which must get `start_offset`."""

    epoch: int
    start_offset: Offset
    voters: tuple[ReplicaKey, ...]
    granting: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class StepDown:
    """This node leads `epoch` no more: appends are refused, those under way may not commit."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Fetch from this leader, one request at a time, each from the log's synced end."""

    epoch: int
    leader_id: NodeId
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Seek:
    """Fetch from any voter or bootstrap server, until one tells who leads."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Fetch from nobody; the answer to a fetch under way is not wanted."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log where `epoch`, or the largest before it, ends at `end_offset` at the leader."""

    epoch: int
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class TakeRecords:
    """Append and sync the records of the FetchAnswered just handed in."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Load this snapshot from the leader; then the log begins at its end."""

    end_offset: Offset
    epoch: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything before `offset` is committed, as far as this node has synced it."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Append a VotersRecord, after a KRaftVersionRecord when it is the first one in the log."""

    voters: VoterSet


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the request just handed in (Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch)."""

    error: ErrorCode
    epoch: int
    leader_id: NodeId
    granted: bool = False


@dataclass(frozen=True, slots=True)
class AnswerChange:
    """The answer to a request about voters, now or when it is committed."""

    ticket: int
    error: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Hand in TimePassed at this time; replaces the time that was set before."""

    at_ms: int


Decision: TypeAlias = (
    Save
    | AskVote
    | AnnounceEpoch
    | EndEpoch
    | AskUpdate
    | Lead
    | StepDown
    | Follow
    | Seek
    | Hold
    | Truncate
    | TakeRecords
    | TakeSnapshot
    | Commit
    | AppendVoters
    | Answer
    | AnswerChange
    | WakeAt
)
