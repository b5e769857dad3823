"""What the quorum is told. `cluster_id` is None where the sender did not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ottla.errors import ErrorCode
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterSet
from ottla.types import NodeId, Offset


@dataclass(frozen=True, slots=True)
class Started:
    """The first event."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time of a `WakeAt` has come; an earlier or a needless call does no harm."""


@dataclass(frozen=True, slots=True)
class LogMoved:
    """The log that comes along has other ends than before: appended, synced, cut, begun anew."""


@dataclass(frozen=True, slots=True)
class VotersAppended:
    """A VotersRecord at `offset` is in the log or in the snapshot it begins with.

    Told right after the batch was appended (by whom ever, synced or not), before anything else.
    """

    offset: Offset
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class ResignAsked:
    """This node stops, or somebody else should lead."""


@dataclass(frozen=True, slots=True)
class VoteAsked:
    """Vote. `voter` is whom the sender believes to ask."""

    epoch: int
    candidate: ReplicaKey
    last_epoch: int
    last_offset: Offset
    pre_vote: bool = False
    voter: ReplicaKey | None = None
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class EpochBegun:
    """BeginQuorumEpoch."""

    epoch: int
    leader_id: NodeId
    endpoints: tuple[Endpoint, ...] = ()
    voter: ReplicaKey | None = None
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """EndQuorumEpoch. The first of `successors` should stand at once."""

    epoch: int
    leader_id: NodeId
    successors: tuple[ReplicaKey, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchAsked:
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


@dataclass(frozen=True, slots=True)
class VoteAnswered:
    """The answer to an AskVote, with what was asked."""

    peer: NodeId
    asked_epoch: int
    pre_vote: bool
    error: ErrorCode
    epoch: int
    leader_id: NodeId
    granted: bool
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The answer to an AnnounceEpoch, EndEpoch or AskUpdate."""

    peer: NodeId
    error: ErrorCode
    epoch: int
    leader_id: NodeId
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No answer to an AskVote, AnnounceEpoch or EndEpoch will come: it will be sent again."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class FetchAnswered:
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


@dataclass(frozen=True, slots=True)
class LeaderUnreachable:
    """The connection to the leader was refused, or lost: it may be dead."""

    epoch: int
    leader_id: NodeId


@dataclass(frozen=True, slots=True)
class AddVoterAsked:
    """AddRaftVoter, after the shell has asked the new voter for the versions it supports."""

    ticket: int
    voter: Voter
    timeout_ms: int
    wait_for_commit: bool = True
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveVoterAsked:
    """RemoveRaftVoter."""

    ticket: int
    voter: ReplicaKey
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateVoterAsked:
    """UpdateRaftVoter: a voter says where it listens."""

    ticket: int
    epoch: int
    voter: Voter
    cluster_id: str | None = None


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
    | LeaderUnreachable
    | AddVoterAsked
    | RemoveVoterAsked
    | UpdateVoterAsked
)
