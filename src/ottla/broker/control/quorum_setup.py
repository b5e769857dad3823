"""The metadata quorum of a node, made from its settings and what its disk remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.broker.control.doubles import Doubles
from ottla.broker.control.metadata_quorum import MetadataQuorum
from ottla.broker.control.quorum_voters import (
    bootstrap_endpoints,
    check_voters,
    first_voters,
    listener_name,
    named_voters,
)
from ottla.broker.control.voter_records import read_history
from ottla.config import BrokerConfig
from ottla.errors import CannotStart, CorruptBatch
from ottla.ports import Clock, Random
from ottla.quorum.quorum import Quorum
from ottla.quorum.state import QuorumState
from ottla.quorum.times import Times
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterHistory
from ottla.types import NodeId
from ottla.wire.codec import MalformedMessage

if TYPE_CHECKING:
    from ottla.broker.control.quorum_peers import QuorumPeers
    from ottla.broker.control.snapshots import MetadataSnapshots
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.stores import Stores
    from ottla.cluster.snapshot_file import Snapshot
    from ottla.log.log import Log


class Seat:
    """Who this node is in the quorum, and who votes by all that its disk and its settings say."""

    def __init__(
        self,
        config: BrokerConfig,
        directory_id: bytes,
        where: tuple[str, int] | None,
        snapshot: Snapshot | None,
        log: Log,
    ) -> None:
        """Blocking. `where` others find this node, if that is known before it listens."""
        key = ReplicaKey(NodeId(config.node_id), directory_id)
        endpoints = () if where is None else (Endpoint(listener_name(config), *where),)
        own = Voter(key, endpoints)
        first = first_voters(config, own, is_new=snapshot is None and not log.end_offset)
        try:
            self.voters: VoterHistory = read_history(first, snapshot, log)
        except (CorruptBatch, MalformedMessage) as error:
            raise CannotStart(f"The metadata log is damaged: {error}.") from error
        check_voters(config, self.voters, key)
        listed = named_voters(config).get(key.id)
        if not self.voters.can_change and listed is not None:
            own = Voter(key, listed.endpoints)
        self.own = own

    @property
    def is_alone(self) -> bool:
        """Whether this node decides alone; others may still follow what it decides."""
        voters = self.voters.last.voters
        return len(voters) == 1 and voters.key_of(self.own.key) is not None


def new_quorum(
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    random: Random,
    config: BrokerConfig,
    stores: Stores,
    seat: Seat,
    partition: Partition,
    state: QuorumState,
    save: Callable[[QuorumState], Awaitable[None]],
    snapshots: MetadataSnapshots,
    give_up: Callable[[str], None],
) -> MetadataQuorum:
    times = Times.from_config(config)

    def make(state: QuorumState) -> Quorum:
        return Quorum(seat.own, stores.cluster_id, seat.voters, state, times, random)

    def new_peers() -> QuorumPeers:
        # The only voter speaks to nobody, and starts sooner without the client.
        from ottla.broker.control.quorum_peers import QuorumPeers

        return QuorumPeers(loop, seat.own, stores.cluster_id, times, bootstrap_endpoints(config))

    quorum = MetadataQuorum(
        loop, clock, partition, make, state, save, snapshots, new_peers, give_up
    )
    quorum.doubles = Doubles(seat.own.key, lambda: quorum.voters, clock, times.fetch_timeout_ms)
    return quorum
