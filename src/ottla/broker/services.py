"""What handlers may use, handed to each of them by the router."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.control.channel import ControllerChannel
    from ottla.broker.control.groups import GroupService
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.control.metadata_quorum import MetadataQuorum
    from ottla.broker.control.needs import Leadership
    from ottla.broker.control.probing import Probes
    from ottla.broker.control.producer_ids import ProducerIds
    from ottla.broker.control.runtime import Runtime
    from ottla.broker.control.snapshots import MetadataSnapshots
    from ottla.broker.control.transactions import TransactionService
    from ottla.broker.counters import Metrics
    from ottla.broker.network.fetch_sessions import FetchSessions
    from ottla.broker.network.router import Router
    from ottla.broker.network.waiting import Deadlines, Parking
    from ottla.broker.replication.throttles import Throttles
    from ottla.broker.storage.directory_moves import DirectoryMoves
    from ottla.broker.storage.opening import Opening
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.partitions import Partitions
    from ottla.broker.storage.retention import Shortener
    from ottla.broker.storage.stores import Stores
    from ottla.broker.storage.truncation import Truncation
    from ottla.cluster.controller import Controller
    from ottla.config import BrokerConfig
    from ottla.ports import Clock, Disk, Executor, Random


@dataclass(slots=True)
class Services:
    config: BrokerConfig
    loop: asyncio.AbstractEventLoop
    clock: Clock
    random: Random
    disk: Disk
    io: Executor
    node_id: int
    cluster_id: str
    metadata: MetadataCache
    controller: Runtime[Controller]
    leadership: Leadership
    quorum: MetadataQuorum
    snapshots: MetadataSnapshots
    channel: ControllerChannel
    probes: Probes
    producer_ids: ProducerIds
    groups: GroupService
    transactions: TransactionService
    stores: Stores
    partitions: Partitions
    shortener: Shortener
    truncation: Truncation
    directory_moves: DirectoryMoves
    fetch_sessions: FetchSessions
    deadlines: Deadlines
    parking: Parking
    opening: Opening
    metrics: Metrics
    # A follower should be in sync, or no more: the controller is to be asked.
    on_misplaced: Callable[[Partition], None]
    throttles: Throttles
    router: Router = field(init=False)
    # Whether clients are answered: the metadata is known, and the partitions are open.
    is_serving: bool = False
