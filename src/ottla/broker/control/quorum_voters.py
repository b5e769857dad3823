"""The voters of the metadata log as the settings name them."""

from __future__ import annotations

from ottla.config import BrokerConfig
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterSet
from ottla.types import NodeId


def voters_of(config: BrokerConfig) -> VoterSet:
    """This node alone, unless a setting names others."""
    return VoterSet([Voter(ReplicaKey(NodeId(config.node_id)))])


def own_voter(config: BrokerConfig, directory_id: bytes) -> Voter:
    """This node with its disk, where the setting says that it listens."""
    node_id = NodeId(config.node_id)
    listed = voters_of(config).get(node_id)
    endpoints: tuple[Endpoint, ...] = () if listed is None else listed.endpoints
    return Voter(ReplicaKey(node_id, directory_id), endpoints)
