"""What the quorum decides; carried out in the order given, one after the other."""

from __future__ import annotations

from typing import TypeAlias

from ottla.errors import ErrorCode
from ottla.quorum.state import QuorumState
from ottla.quorum.values import Value
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterSet
from ottla.types import NodeId, Offset


class Save(Value):
    """Must be on stable storage before the next decision is looked at."""

    state: QuorumState


class AskVote(Value):
    """Send Vote; answered by VoteAnswered or RequestFailed."""

    peer: ReplicaKey
    epoch: int
    pre_vote: bool
    last_epoch: int
    last_offset: Offset


class AnnounceEpoch(Value):
    """Send BeginQuorumEpoch with this node as the leader; answered by Acknowledged."""

    peer: ReplicaKey
    epoch: int


class EndEpoch(Value):
    """Send EndQuorumEpoch; answered by Acknowledged."""

    peer: ReplicaKey
    epoch: int
    successors: tuple[ReplicaKey, ...]


class AskUpdate(Value):
    """Send UpdateRaftVoter about this node to the leader; answered by UpdateAnswered."""

    leader_id: NodeId
    epoch: int
    voter: Voter


class Lead(Value):
    """This node leads the epoch: append a LeaderChangeMessage, which must get `start_offset`."""

    epoch: int
    start_offset: Offset
    voters: tuple[ReplicaKey, ...]
    granting: tuple[ReplicaKey, ...]


class StepDown(Value):
    """This node leads `epoch` no more: appends are refused, those under way may not commit."""

    epoch: int


class Follow(Value):
    """Fetch from this leader, one request at a time, each from the log's synced end."""

    epoch: int
    leader_id: NodeId
    endpoints: tuple[Endpoint, ...]


class Seek(Value):
    """Fetch from any voter or bootstrap server, until one tells who leads."""

    epoch: int


class Hold(Value):
    """Fetch from nobody; the answer to a fetch under way is not wanted."""

    epoch: int


class Truncate(Value):
    """Cut the log where `epoch`, or the largest before it, ends at `end_offset` at the leader."""

    epoch: int
    end_offset: Offset


class TakeRecords(Value):
    """Append and sync the records of the FetchAnswered just handed in."""


class TakeSnapshot(Value):
    """Load this snapshot from the leader; SnapshotFetched tells when it is here."""

    end_offset: Offset
    epoch: int


class BeginAfter(Value):
    """Empty the log, which begins after this snapshot from now on; the voters in the snapshot, if
    it has any, are told by VotersAppended, then LogMoved.
    """

    end_offset: Offset
    epoch: int


class Commit(Value):
    """Everything before `offset` is committed, as far as this node has synced it."""

    offset: Offset


class AppendVoters(Value):
    """Append a VotersRecord, after a KRaftVersionRecord when it is the first one in the log."""

    voters: VoterSet
    is_first: bool = False


class Answer(Value):
    """The answer to the request just handed in (Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch)."""

    error: ErrorCode
    epoch: int
    leader_id: NodeId
    granted: bool = False


class AnswerChange(Value):
    """The answer to a request about voters, now or when it is committed."""

    ticket: int
    error: ErrorCode
    message: str | None = None


class WakeAt(Value):
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
    | BeginAfter
    | Commit
    | AppendVoters
    | Answer
    | AnswerChange
    | WakeAt
)
