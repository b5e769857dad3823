"""The voters of the metadata log as the settings name them."""

from __future__ import annotations

from typing import Final

from ottla.config import BrokerConfig
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterSet
from ottla.types import NodeId

# Kafka's name of the listener on which voters speak to each other.
LISTENER: Final = "CONTROLLER"


def voters_of(config: BrokerConfig) -> VoterSet:
    """Whom the setting names, without their directories; nobody named means a controller alone."""
    name = listener_name(config)
    voters = [
        Voter(ReplicaKey(NodeId(node_id)), (Endpoint(name, *address),))
        for node_id, address in config.voters()
    ]
    if not voters and config.is_controller:
        voters = [Voter(ReplicaKey(NodeId(config.node_id)))]
    return VoterSet(voters)


def listener_name(config: BrokerConfig) -> str:
    """By which voters know each other's endpoints."""
    names = config.controller_listener_names
    return names[0].upper() if names else LISTENER


def is_only_voter(config: BrokerConfig) -> bool:
    """Whether this node decides alone; others may still follow what it decides."""
    return config.is_controller and len(voters_of(config)) == 1


def bootstrap_endpoints(config: BrokerConfig) -> list[Endpoint]:
    """Where to ask who leads, without knowing which nodes these are."""
    name = listener_name(config)
    return [Endpoint(name, *address) for address in config.bootstrap_servers()]


def own_voter(config: BrokerConfig, directory_id: bytes) -> Voter:
    """This node with its disk, where the setting says that it listens."""
    node_id = NodeId(config.node_id)
    listed = voters_of(config).get(node_id)
    endpoints: tuple[Endpoint, ...] = () if listed is None else listed.endpoints
    return Voter(ReplicaKey(node_id, directory_id), endpoints)
