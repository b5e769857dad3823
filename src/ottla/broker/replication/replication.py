"""What this node follows and what follows it, wired to the metadata and the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.broker.control.channel import ControllerChannel
from ottla.broker.control.metadata import BrokersChanged, Change, MetadataCache
from ottla.broker.control.node_connection import connect_to_broker
from ottla.broker.replication.followers import Followers
from ottla.broker.replication.handover import Handover
from ottla.broker.replication.in_sync import InSyncKeeper
from ottla.broker.replication.limits import FetchLimits
from ottla.broker.replication.refills import Refills
from ottla.broker.replication.throttles import Throttles
from ottla.config import BrokerConfig
from ottla.errors import StorageFailed
from ottla.ports import Clock
from ottla.types import NodeId
from ottla.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.partitions import Partitions
    from ottla.broker.storage.truncation import Truncation
    from ottla.client.connection import Connection

Shorten = Callable[[Mapping["Partition", int]], Awaitable[Mapping["Partition", OSError]]]


class Replication:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        config: BrokerConfig,
        metadata: MetadataCache,
        partitions: Partitions,
        channel: ControllerChannel,
        broker_epoch: Callable[[], int],
        truncation: Truncation,
        shorten: Shorten,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._partitions = partitions
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._shorten = shorten
        self.throttles = Throttles(clock, metadata)
        self.followers = Followers(
            loop,
            clock,
            NodeId(config.node_id),
            FetchLimits(
                wait_ms=config.replica_fetch_wait_max_ms,
                min_bytes=config.replica_fetch_min_bytes,
                max_bytes=config.replica_fetch_response_max_bytes,
                partition_bytes_max=config.replica_fetch_max_bytes,
            ),
            self._connect,
            truncation,
            self._cut_start,
            self.throttles,
        )
        self.in_sync = InSyncKeeper(
            clock,
            config.node_id,
            broker_epoch,
            self._led,
            self._is_active,
            lambda: metadata.broker_config.replica_lag_time_max_ms,
            self._ask,
            lease_ms_max=config.broker_session_timeout_ms,
        )

        self.handover = Handover(config.node_id, broker_epoch, self._ask)
        self.refills = Refills(
            loop,
            config.node_id,
            metadata,
            self.followers,
            truncation.empty,
            may_empty=config.replica_damaged_refill_enable,
        )

    def start(self) -> None:
        """The node is registered: its fetches count as those of this life."""
        self.followers.start(self._broker_epoch())

    async def stop(self) -> None:
        await self.in_sync.stop()
        await self.refills.stop()
        await self.followers.stop()

    def _led(self) -> Iterator[Partition]:
        """What this node leads and others follow."""
        for partition in self._partitions:
            replicas = partition.replicas
            if replicas is not None and len(replicas.replicas) > 1:
                yield partition

    def _is_active(self, node_id: int) -> bool:
        broker = self._metadata.image.brokers.get(node_id)
        return broker is not None and broker.is_active

    def see(self, changes: Sequence[Change]) -> None:
        """A broker that is back may be in sync with what did not change meanwhile."""
        self.handover.see()
        if any(isinstance(change, BrokersChanged) for change in changes):
            for partition in self._led():
                if self._has_absent(partition):
                    self.in_sync.notice(partition)

    def _has_absent(self, partition: Partition) -> bool:
        replicas = partition.replicas
        return replicas is not None and replicas.isr != replicas.replicas

    async def _connect(self, leader: NodeId) -> Connection:
        return await connect_to_broker(self._config, self._metadata, leader)

    async def _cut_start(self, partition: Partition, offset: int) -> None:
        """The leader has deleted all before `offset`."""
        failed = await self._shorten({partition: min(offset, partition.high_watermark.offset)})
        if partition in failed:
            raise StorageFailed(f"{partition.name}: {failed[partition]}")

    async def _ask(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        timeout_s = self._config.request_timeout_ms / 1000
        return await self._channel.ask(request, AlterPartitionResponse, timeout_s)
