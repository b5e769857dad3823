"""The metadata quorum of a node, made from its settings and what its disk remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.broker.control.doubles import Doubles
from ottla.broker.control.metadata_quorum import MetadataQuorum
from ottla.broker.control.quorum_voters import (
    bootstrap_endpoints,
    is_only_voter,
    own_voter,
    voters_of,
)
from ottla.config import BrokerConfig
from ottla.ports import Clock, Random
from ottla.quorum.quorum import Quorum
from ottla.quorum.state import QuorumState
from ottla.quorum.times import Times
from ottla.quorum.voters import Voter, VoterHistory, VoterSet

if TYPE_CHECKING:
    from ottla.broker.control.quorum_peers import QuorumPeers
    from ottla.broker.control.snapshots import MetadataSnapshots
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.stores import Stores


def new_quorum(
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    random: Random,
    config: BrokerConfig,
    stores: Stores,
    partition: Partition,
    state: QuorumState,
    save: Callable[[QuorumState], Awaitable[None]],
    snapshots: MetadataSnapshots,
    give_up: Callable[[str], None],
) -> MetadataQuorum:
    own = own_voter(config, stores.metadata.directory_id)
    voters, times = voters_of(config), Times.from_config(config)

    def make(state: QuorumState) -> Quorum:
        history = VoterHistory(voters, can_change=False)
        return Quorum(own, stores.cluster_id, history, state, times, random)

    peers = _new_peers(loop, config, own, stores.cluster_id, voters, times)
    quorum = MetadataQuorum(loop, clock, partition, make, state, save, snapshots, peers, give_up)
    quorum.doubles = Doubles(own.key, voters, clock, times.fetch_timeout_ms)
    return quorum


def _new_peers(
    loop: asyncio.AbstractEventLoop,
    config: BrokerConfig,
    own: Voter,
    cluster_id: str,
    voters: VoterSet,
    times: Times,
) -> QuorumPeers | None:
    """The only voter starts without the client that speaks to others."""
    if is_only_voter(config):
        return None
    from ottla.broker.control.quorum_peers import QuorumPeers

    strangers = [] if config.is_controller else bootstrap_endpoints(config)
    return QuorumPeers(loop, own, cluster_id, voters, times, strangers)
