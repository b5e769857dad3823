"""The voters of the metadata log as the settings name them."""

from __future__ import annotations

from typing import Final

from ottla.config import BrokerConfig
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterSet
from ottla.types import NodeId

# Kafka's name of the listener on which voters speak to each other.
LISTENER: Final = "CONTROLLER"


def voters_of(config: BrokerConfig) -> VoterSet:
    """This node alone, unless the setting names others. It tells no directories."""
    voters = [
        Voter(ReplicaKey(NodeId(node_id)), (Endpoint(LISTENER, *address),))
        for node_id, address in config.voters()
    ]
    return VoterSet(voters or [Voter(ReplicaKey(NodeId(config.node_id)))])


def own_voter(config: BrokerConfig, directory_id: bytes) -> Voter:
    """This node with its disk, where the setting says that it listens."""
    node_id = NodeId(config.node_id)
    listed = voters_of(config).get(node_id)
    endpoints: tuple[Endpoint, ...] = () if listed is None else listed.endpoints
    return Voter(ReplicaKey(node_id, directory_id), endpoints)
