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
    """Who the controller is: the leader of the metadata log."""

    @property
    def leader_id(self) -> NodeId:
        """NO_NODE while nobody is known to lead."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def voter_ids(self) -> set[int]: ...

    def address_of(self, node_id: NodeId) -> str | None:
        """Where a voter is reached; None when nobody has said."""

    def on_leader_change(self, callback: Callable[[], None]) -> None:
        """Told when another node leads, under another epoch, or nobody does."""


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
