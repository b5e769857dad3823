"""The quorum as DescribeQuorum shows it (KIP-836, KIP-853)."""

from __future__ import annotations

from ottla.quorum.node import LogEnd, Node
from ottla.quorum.progress import OBSERVER_SESSION_MS
from ottla.quorum.values import Value
from ottla.quorum.voters import ReplicaKey, VoterSet
from ottla.types import NO_OFFSET, NodeId, Offset


class ReplicaView(Value):
    """Times are of the steady clock, -1 where they are not known."""

    key: ReplicaKey
    log_end_offset: Offset
    fetched_ms: int
    caught_up_ms: int


class Description(Value):
    leader_id: NodeId
    epoch: int
    high_watermark: Offset
    voter_set: VoterSet
    voters: tuple[ReplicaView, ...]
    observers: tuple[ReplicaView, ...]


def describe(node: Node, log: LogEnd, now_ms: int) -> Description:
    own = node.voters.key_of(node.own.key)

    def view(key: ReplicaKey) -> ReplicaView:
        if node.leadership is None:
            return ReplicaView(key, NO_OFFSET, -1, -1)
        if key == own:
            return ReplicaView(key, log.end_offset, now_ms, now_ms)
        progress = node.leadership.replicas.get(key)
        if progress is None:
            return ReplicaView(key, NO_OFFSET, -1, -1)
        return ReplicaView(key, progress.offset, progress.fetched_ms, progress.caught_up_ms)

    replicas = {} if node.leadership is None else node.leadership.replicas
    observers = tuple(
        view(key)
        for key, progress in replicas.items()
        if key not in node.voters.keys and now_ms - progress.fetched_ms <= OBSERVER_SESSION_MS
    )
    high_watermark = NO_OFFSET if node.high_watermark is None else node.high_watermark
    return Description(
        node.leader_id,
        node.epoch,
        high_watermark,
        node.voters,
        tuple(view(key) for key in node.voters.keys),
        observers,
    )
