"""What this room needs of the broker's services."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.control.runtime import Runtime
    from ottla.broker.storage.partitions import Partitions
    from ottla.cluster.controller import Controller
    from ottla.config import BrokerConfig
    from ottla.ports import Clock, Executor, Random


class ControlServices(Protocol):
    config: BrokerConfig
    loop: asyncio.AbstractEventLoop
    clock: Clock
    random: Random
    io: Executor
    node_id: int
    metadata: MetadataCache
    controller: Runtime[Controller]
    partitions: Partitions
