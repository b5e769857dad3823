"""What the quorum is told. `cluster_id` is None where the sender did not say."""

from __future__ import annotations

from typing import TypeAlias

from ottla.errors import ErrorCode
from ottla.quorum.values import Value
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterSet
from ottla.types import NodeId, Offset


class Started(Value):
    """The first event."""


class TimePassed(Value):
    """The time of a `WakeAt` has come; an earlier or a needless call does no harm."""


class LogMoved(Value):
    """The log that comes along has other ends than before: appended, synced, cut, begun anew."""


class VotersAppended(Value):
    """A VotersRecord at `offset` is in the log or in the snapshot it begins with.

    Told right after the batch was appended (by whom ever, synced or not), before anything else.
    """

    offset: Offset
    voters: VoterSet


class ResignAsked(Value):
    """This node stops, or somebody else should lead."""


class VoteAsked(Value):
    """Vote. `voter` is whom the sender believes to ask."""

    epoch: int
    candidate: ReplicaKey
    last_epoch: int
    last_offset: Offset
    pre_vote: bool = False
    voter: ReplicaKey | None = None
    cluster_id: str | None = None


class EpochBegun(Value):
    """BeginQuorumEpoch."""

    epoch: int
    leader_id: NodeId
    endpoints: tuple[Endpoint, ...] = ()
    voter: ReplicaKey | None = None
    cluster_id: str | None = None


class EpochEnded(Value):
    """EndQuorumEpoch. The first of `successors` should stand at once."""

    epoch: int
    leader_id: NodeId
    successors: tuple[ReplicaKey, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    cluster_id: str | None = None


class FetchAsked(Value):
    """Fetch of the metadata log, or FetchSnapshot.

    The sender has synced everything before `offset`. `matches` says that our log has this offset,
    after a batch of the sender's last epoch: no divergence, no snapshot needed. It must be true of
    the log that is handed in along with it.
    """

    replica: ReplicaKey
    epoch: int
    offset: Offset
    matches: bool
    cluster_id: str | None = None


class VoteAnswered(Value):
    """The answer to an AskVote, with what was asked."""

    peer: NodeId
    asked_epoch: int
    pre_vote: bool
    error: ErrorCode
    epoch: int
    leader_id: NodeId
    granted: bool
    endpoints: tuple[Endpoint, ...] = ()


class Acknowledged(Value):
    """The answer to an AnnounceEpoch or EndEpoch."""

    peer: NodeId
    error: ErrorCode
    epoch: int
    leader_id: NodeId
    endpoints: tuple[Endpoint, ...] = ()


class RequestFailed(Value):
    """No answer to an AskVote, AnnounceEpoch or EndEpoch will come: it will be sent again."""

    peer: NodeId


class UpdateAnswered(Value):
    """The answer to an AskUpdate, where it is one; without it the leader is told again."""

    leader_id: NodeId
    epoch: int
    error: ErrorCode


class FetchAnswered(Value):
    """The answer to a Fetch from `asked_offset` after `asked_last_epoch`, or to a FetchSnapshot.

    `diverging` is (epoch, end offset), `snapshot` (end offset, epoch), as the leader says.
    """

    asked_offset: Offset
    asked_last_epoch: int
    error: ErrorCode
    epoch: int
    leader_id: NodeId
    high_watermark: Offset
    has_records: bool = False
    diverging: tuple[int, Offset] | None = None
    snapshot: tuple[Offset, int] | None = None
    endpoints: tuple[Endpoint, ...] = ()


class SnapshotFetched(Value):
    """What a TakeSnapshot of this epoch's leader asked for is here, whole and synced."""

    epoch: int
    leader_id: NodeId
    end_offset: Offset
    snapshot_epoch: int


class LeaderUnreachable(Value):
    """The connection to the leader was refused, or lost: it may be dead."""

    epoch: int
    leader_id: NodeId


class AddVoterAsked(Value):
    """AddRaftVoter, after the shell has asked the new voter for the versions it supports; before
    that, to `validate_only`.
    """

    ticket: int
    voter: Voter
    timeout_ms: int
    wait_for_commit: bool = True
    cluster_id: str | None = None
    validate_only: bool = False


class RemoveVoterAsked(Value):
    """RemoveRaftVoter."""

    ticket: int
    voter: ReplicaKey
    cluster_id: str | None = None


class UpdateVoterAsked(Value):
    """UpdateRaftVoter: a voter says where it listens."""

    ticket: int
    epoch: int
    voter: Voter
    cluster_id: str | None = None


class UpgradeAsked(Value):
    """UpdateFeatures of kraft.version: the voters of the setting become records."""

    ticket: int
    timeout_ms: int
    validate_only: bool = False


Event: TypeAlias = (
    Started
    | TimePassed
    | LogMoved
    | VotersAppended
    | ResignAsked
    | VoteAsked
    | EpochBegun
    | EpochEnded
    | FetchAsked
    | VoteAnswered
    | Acknowledged
    | RequestFailed
    | FetchAnswered
    | SnapshotFetched
    | LeaderUnreachable
    | AddVoterAsked
    | RemoveVoterAsked
    | UpdateVoterAsked
    | UpdateAnswered
    | UpgradeAsked
)
