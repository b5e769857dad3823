"""What requests of several kinds have in common to be refused for."""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.quorum.node import Node
from ottla.quorum.roles import Role
from ottla.types import NodeId


def is_other_cluster(node: Node, cluster_id: str | None) -> bool:
    return cluster_id is not None and cluster_id != node.cluster_id


def check_epoch_request(node: Node, cluster_id: str | None, sender_id: NodeId, epoch: int) -> bool:
    """Of candidates and leaders; answers itself where it finds something wrong."""
    if is_other_cluster(node, cluster_id):
        node.answer(ErrorCode.INCONSISTENT_CLUSTER_ID)
    elif epoch < node.epoch:
        node.answer(ErrorCode.FENCED_LEADER_EPOCH)
    elif sender_id < 0:
        node.answer(ErrorCode.INVALID_REQUEST)
    else:
        return True
    return False


def leader_error(node: Node, cluster_id: str | None, epoch: int) -> ErrorCode:
    """What is wrong with a request that only the leader of the sender's epoch can serve."""
    if is_other_cluster(node, cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < node.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > node.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if node.role is not Role.LEADER:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE
