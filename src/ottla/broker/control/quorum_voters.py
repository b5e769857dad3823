"""The voters of the metadata log before any record tells them: as settings name them."""

from __future__ import annotations

from typing import Final

from ottla.config import BrokerConfig
from ottla.config.roles import is_alone, is_own
from ottla.errors import CannotStart
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from ottla.types import NodeId

# Kafka's name of the listener on which voters speak to each other.
LISTENER: Final = "CONTROLLER"


def named_voters(config: BrokerConfig) -> VoterSet:
    """Whom the setting names, without their directories."""
    name = listener_name(config)
    return VoterSet(
        Voter(ReplicaKey(NodeId(node_id)), (Endpoint(name, *address),))
        for node_id, address in config.voters()
    )


def first_voters(config: BrokerConfig, own: Voter, *, is_new: bool) -> VoterHistory:
    """What holds until a record says otherwise.

    A node that nobody has named others to begins its cluster with a record of itself. A log that
    has none is of the time before there were such records: its only voter stays a setting until
    somebody raises kraft.version.
    """
    named = named_voters(config)
    if len(named) or not is_alone(config):
        return VoterHistory(named, can_change=False)
    if is_new:
        return VoterHistory(VoterSet([own]), can_change=True)
    return VoterHistory(VoterSet([Voter(ReplicaKey(own.key.id))]), can_change=False)


def listener_name(config: BrokerConfig) -> str:
    """By which voters know each other's endpoints."""
    names = config.controller_listener_names
    return names[0].upper() if names else LISTENER


def bootstrap_endpoints(config: BrokerConfig) -> list[Endpoint]:
    """Where to ask who leads, without knowing which nodes these are."""
    name = listener_name(config)
    others = (
        address
        for address in config.bootstrap_servers()
        if not (config.is_controller and is_own(config, address))
    )
    return [Endpoint(name, *address) for address in others]


def check_voters(config: BrokerConfig, voters: VoterHistory, own: ReplicaKey) -> None:
    """CannotStart where the records and the settings tell stories that cannot both be true."""
    recorded, named = voters.last.voters, {voter.node_id for voter in config.voters()}
    if not voters.can_change:
        return
    if recorded.keys == (own,) and len(named) > 1:
        others = ", ".join(str(node_id) for node_id in sorted(named - {own.id}))
        raise CannotStart(
            f"controller.quorum.voters names {others} too, but by its metadata log node {own.id} "
            "is the only voter; take the setting out, and add the others while this node runs "
            "(`ottla quorum add-voter`)."
        )
    if not len(recorded) and not (named or bootstrap_endpoints(config)):
        raise CannotStart(
            "This node is no voter, and nothing says where the controllers are; set "
            "controller.quorum.bootstrap.servers=HOST:PORT."
        )
