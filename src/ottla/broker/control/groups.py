"""Where groups live: the shards of `__consumer_offsets`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.broker.control.runtime import Runtime
from ottla.broker.control.shards import ShardService
from ottla.coordinators.groups import GroupMachine
from ottla.coordinators.offsets import Position
from ottla.coordinators.settings import Caller, GroupSettings
from ottla.types import OFFSETS_TOPIC

if TYPE_CHECKING:
    from ottla.broker.request import RequestContext
    from ottla.config import BrokerConfig

Shard: TypeAlias = Runtime[GroupMachine]


def caller_of(context: RequestContext) -> Caller:
    """Kafka writes a member's address with a slash before it, and tools expect that."""
    return Caller(context.client_id or "", f"/{context.host}", context.version)


class GroupService(ShardService[GroupMachine]):
    topic = OFFSETS_TOPIC

    def new_shard(self, index: int) -> Shard:
        services = self.services
        return Runtime(
            services.loop,
            services.clock,
            services.io,
            services.partitions.get(OFFSETS_TOPIC, index),
            GroupMachine(_settings(services.config), services.random),
            wait_ms_max=services.config.offsets_commit_timeout_ms,
        )

    def has_partition(self, topic: str, index: int) -> bool:
        found = self.services.metadata.image.topics_by_name.get(topic)
        return found is not None and index in found.partitions

    def committed_offsets(self) -> Iterator[Position]:
        """Every committed position here, for metrics; use it up before the loop turns."""
        for shard in self._shards.values():
            yield from shard.machine.positions()

    def topics_deleted(self, names: list[str]) -> None:
        for shard in self._shards.values():
            future = shard.submit(
                lambda machine, now, ticket: machine.topics_deleted(names, ticket)
            )
            future.add_done_callback(_ignore)


def _ignore(future: asyncio.Future[Any]) -> None:
    """Positions that could not be removed with their topic expire some day."""
    if not future.cancelled():
        future.exception()


def _settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        session_timeout_min_ms=config.group_min_session_timeout_ms,
        session_timeout_max_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        members_max=config.group_max_size,
        offset_metadata_max=config.offset_metadata_max_bytes,
        offset_retention_ms=config.offsets_retention_minutes * 60_000,
        offset_check_interval_ms=config.offsets_retention_check_interval_ms,
    )
