"""What this room needs of the broker's services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.broker.control.channel import ControllerChannel
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.control.runtime import Runtime
    from ottla.broker.storage.partitions import Partitions
    from ottla.cluster.controller import Controller
    from ottla.config import BrokerConfig
    from ottla.ports import Clock, Executor, Random
    from ottla.types import NodeId


class Leadership(Protocol):
    """Who leads the metadata log, and so is the controller."""

    @property
    def leader_id(self) -> NodeId: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool:
        """Whether this node is the controller."""

    def address_of(self, node_id: NodeId) -> str | None:
        """Where a node of the cluster is spoken to by others, as host:port, if that is known."""

    def on_leader_change(self, callback: Callable[[], None]) -> None: ...


class ControlServices(Protocol):
    config: BrokerConfig
    loop: asyncio.AbstractEventLoop
    clock: Clock
    random: Random
    io: Executor
    node_id: int
    metadata: MetadataCache
    controller: Runtime[Controller]
    leadership: Leadership
    channel: ControllerChannel
    partitions: Partitions
