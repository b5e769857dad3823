"""Where groups live: one shard, that is one runtime with its machine, per offsets partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from ottla.broker.control.metadata import (
    Change,
    LeaderChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from ottla.broker.control.runtime import Runtime
from ottla.broker.control.topic_creation import ensure_topic
from ottla.broker.deferred import Deferred
from ottla.coordinators.groups import GroupMachine
from ottla.coordinators.offsets import Position
from ottla.coordinators.settings import Caller, GroupSettings
from ottla.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    NotCoordinator,
    OttlaError,
    code_of,
)
from ottla.types import OFFSETS_TOPIC

if TYPE_CHECKING:
    from ottla.broker.control.needs import ControlServices
    from ottla.broker.request import RequestContext
    from ottla.config import BrokerConfig

T = TypeVar("T")
Shard: TypeAlias = Runtime[GroupMachine]

# How long a look-up waits for a shard that is being read; then the client is sent there anyway.
LOAD_WAIT_S: Final = 5.0
HASHES_REMEMBERED: Final = 10_000

# What clients of a coordinator understand instead of what befell its partition; as Kafka has it.
_CODES_FOR_CLIENTS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def group_code_of(error: BaseException) -> ErrorCode:
    """The code that a group's client is told."""
    code = code_of(error)
    return _CODES_FOR_CLIENTS.get(code, code)


@lru_cache(HASHES_REMEMBERED)
def java_hash(text: str) -> int:
    """`String.hashCode()`, without its sign: by it Kafka finds a group's partition."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    if value == 0x80000000:
        return 0
    return value if value < 0x80000000 else 0x100000000 - value


def caller_of(context: RequestContext) -> Caller:
    """Kafka writes a member's address with a slash before it, and tools expect that."""
    return Caller(context.client_id or "", f"/{context.host}", context.version)


def when_decided(
    future: asyncio.Future[T], error_response: Callable[[Exception], T], *, pipelined: bool = True
) -> T | Deferred[T]:
    """A handler's outcome: the reply if it is already there, as after nearly every heartbeat."""
    if future.done():
        return future.result()
    deferred: Deferred[T] = Deferred(pipelined=pipelined)

    def answer(done: asyncio.Future[T]) -> None:
        if done.cancelled():
            deferred.resolve(error_response(CoordinatorNotAvailable("the request was cancelled")))
            return
        error = done.exception()
        if error is None:
            deferred.resolve(done.result())
        else:
            deferred.resolve(
                error_response(error if isinstance(error, Exception) else OttlaError(error))
            )

    future.add_done_callback(answer)
    return deferred


class GroupService:
    """Built empty; `attach` gives it the broker's services, `start` lets it follow metadata."""

    def __init__(self) -> None:
        self._services: ControlServices | None = None
        self._shards: dict[int, Shard] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}

    @property
    def services(self) -> ControlServices:
        if self._services is None:
            raise CoordinatorNotAvailable("the broker is starting")
        return self._services

    def attach(self, services: ControlServices) -> None:
        self._services = services

    def start(self) -> None:
        """Begins to read every shard that is here; call it when the partitions are open."""
        metadata = self.services.metadata
        metadata.on_change(self._follow)
        if metadata.has_topic(OFFSETS_TOPIC):
            self._open(metadata.topic(OFFSETS_TOPIC).partitions)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()
        self._loads.clear()

    # ---------------------------------------------------------------------------------- shards

    def partition_of(self, group: str) -> int:
        """The offsets partition that a group belongs to."""
        return java_hash(group) % len(self.services.metadata.topic(OFFSETS_TOPIC).partitions)

    def shard_of(self, group: str) -> Shard:
        """The shard that coordinates this group, if it is here."""
        if not self.services.metadata.has_topic(OFFSETS_TOPIC):
            raise NotCoordinator("no group has been coordinated yet")
        index = self.partition_of(group)
        shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinator(f"{OFFSETS_TOPIC}-{index} is not here")
        if not shard.partition.is_leader:
            raise NotCoordinator(f"{OFFSETS_TOPIC}-{index} may be led by another node")
        return shard

    def shards(self) -> Collection[Shard]:
        """Those that nobody else may have by now."""
        return [shard for shard in self._shards.values() if shard.partition.is_leader]

    def by_shard(
        self, groups: Sequence[str]
    ) -> tuple[dict[Shard, list[str]], dict[str, OttlaError]]:
        """The groups of a request by where they live, and those that do not live here."""
        found: dict[Shard, list[str]] = {}
        failures: dict[str, OttlaError] = {}
        for group in dict.fromkeys(groups):
            try:
                found.setdefault(self.shard_of(group), []).append(group)
            except OttlaError as error:
                failures[group] = error
        return found, failures

    def is_ready(self, group: str) -> bool:
        """Whether a group's shard is known and read, so that nobody has to wait for it."""
        if not self.services.metadata.has_topic(OFFSETS_TOPIC):
            return False
        load = self._loads.get(self.partition_of(group))
        return load is None or load.done()

    async def make_ready(self, group: str) -> None:
        """Creates the offsets topic if need be, and waits a while for the group's shard."""
        await ensure_topic(self.services, OFFSETS_TOPIC)
        load = self._loads.get(self.partition_of(group))
        if load is not None:
            await asyncio.wait((load,), timeout=LOAD_WAIT_S)

    def has_partition(self, topic: str, index: int) -> bool:
        found = self.services.metadata.image.topics_by_name.get(topic)
        return found is not None and index in found.partitions

    def committed_offsets(self) -> Iterator[Position]:
        """Every committed position here, for metrics; use it up before the loop turns."""
        for shard in self._shards.values():
            yield from shard.machine.positions()

    # ------------------------------------------------------------------------------- following

    def _follow(self, changes: Sequence[Change]) -> None:
        deleted = []
        for change in changes:
            if isinstance(change, TopicDeleted):
                deleted.append(change.name)
            elif isinstance(change, TopicCreated) and change.topic.name == OFFSETS_TOPIC:
                self._open(change.topic.partitions)
            elif isinstance(change, PartitionsAdded) and change.topic.name == OFFSETS_TOPIC:
                self._open(change.indexes)
            elif isinstance(change, LeaderChanged) and change.topic.name == OFFSETS_TOPIC:
                self._lead_or_leave(change.partition_index, change.partition.leader)
        if OFFSETS_TOPIC in deleted:
            self.close()
        elif deleted:
            self._forget_topics(deleted)

    def _lead_or_leave(self, index: int, leader: int) -> None:
        """A shard stays as it is where only the epoch of its leader is new."""
        if leader == self.services.node_id:
            if index not in self._shards:
                self._open((index,))
        elif index in self._shards:
            self._loads.pop(index)
            self._shards.pop(index).close(
                NotCoordinator(f"{OFFSETS_TOPIC}-{index} is led by node {leader}")
            )

    def _open(self, indexes: Collection[int]) -> None:
        services = self.services
        for index in indexes:
            if services.metadata.leader_of(OFFSETS_TOPIC, index) != services.node_id:
                continue
            machine = GroupMachine(_settings(services.config), services.random)
            partition = services.partitions.get(OFFSETS_TOPIC, index)
            shard = Runtime(
                services.loop,
                services.clock,
                services.io,
                partition,
                machine,
                wait_ms_max=services.config.offsets_commit_timeout_ms,
            )
            self._shards[index] = shard
            self._loads[index] = shard.start_loading()

    def _forget_topics(self, names: list[str]) -> None:
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
