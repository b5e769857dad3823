"""What handlers may use, handed to each of them by the router."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ottla.broker.control.groups import GroupService
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.control.runtime import Runtime
    from ottla.broker.metrics.counters import Metrics
    from ottla.broker.network.fetch_sessions import FetchSessions
    from ottla.broker.network.waiting import Deadlines, Parking
    from ottla.broker.storage.opening import Opening
    from ottla.broker.storage.partitions import Partitions
    from ottla.broker.storage.retention import Shortener
    from ottla.cluster.controller import Controller
    from ottla.config import BrokerConfig
    from ottla.ports import Clock, Disk, Random


class RequestContext(NamedTuple):
    """What is known of a request besides its body."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    host: str
    listener: str
    memory: dict[Any, Any]
    """What handlers remember for the life of this connection."""


@dataclass(slots=True)
class Services:
    config: BrokerConfig
    loop: asyncio.AbstractEventLoop
    clock: Clock
    random: Random
    disk: Disk
    node_id: int
    cluster_id: str
    metadata: MetadataCache
    controller: Runtime[Controller]
    groups: GroupService
    partitions: Partitions
    shortener: Shortener
    fetch_sessions: FetchSessions
    deadlines: Deadlines
    parking: Parking
    opening: Opening
    metrics: Metrics
