"""Where a coordinator's state lives: one shard, a runtime with its machine, per partition.

A shard is on the node that leads its partition, and goes where that goes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

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
from ottla.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    NotCoordinator,
    OttlaError,
    code_of,
)
from ottla.machine import StateMachine

if TYPE_CHECKING:
    from ottla.broker.control.needs import ControlServices

M = TypeVar("M", bound=StateMachine[Any])
T = TypeVar("T")

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


def coordinator_code_of(error: BaseException) -> ErrorCode:
    """The code that a coordinator's client is told."""
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


class ShardService(ABC, Generic[M]):
    """Built empty; `attach` gives it the broker's services, `start` lets it follow metadata."""

    topic: str

    def __init__(self) -> None:
        self._services: ControlServices | None = None
        self._shards: dict[int, Runtime[M]] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}

    @abstractmethod
    def new_shard(self, index: int) -> Runtime[M]:
        """The shard of a partition that this node leads from now on."""

    def topics_deleted(self, names: list[str]) -> None:
        """Told of topics that are gone."""

    def shard_left(self, index: int) -> None:
        """Another node leads the partition of a shard that was here."""

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
        if metadata.has_topic(self.topic):
            self._open(metadata.topic(self.topic).partitions)

    def close(self) -> None:
        for index in list(self._shards):
            self.shard_left(index)
            self._shards[index].close()
        self._shards.clear()
        self._loads.clear()

    # ---------------------------------------------------------------------------------- shards

    def partition_of(self, key: str) -> int:
        """The partition that a group or a transactional id belongs to."""
        return java_hash(key) % len(self.services.metadata.topic(self.topic).partitions)

    def shard_of(self, key: str) -> Runtime[M]:
        """The shard that coordinates this group or id, if it is here."""
        if not self.services.metadata.has_topic(self.topic):
            raise NotCoordinator(f"there is no {self.topic} yet")
        return self.shard_at(self.partition_of(key))

    def shard_at(self, index: int) -> Runtime[M]:
        shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinator(f"{self.topic}-{index} is not here")
        if not shard.partition.is_leader:
            raise NotCoordinator(f"{self.topic}-{index} may be led by another node")
        return shard

    def shards(self) -> Collection[Runtime[M]]:
        """Those that nobody else may have by now."""
        return [shard for shard in self._shards.values() if shard.partition.is_leader]

    def by_shard(
        self, keys: Sequence[str]
    ) -> tuple[dict[Runtime[M], list[str]], dict[str, OttlaError]]:
        """What a request names by where it lives, and what does not live here."""
        found: dict[Runtime[M], list[str]] = {}
        failures: dict[str, OttlaError] = {}
        for key in dict.fromkeys(keys):
            try:
                found.setdefault(self.shard_of(key), []).append(key)
            except OttlaError as error:
                failures[key] = error
        return found, failures

    def is_ready(self, key: str) -> bool:
        """Whether a key's shard is known and read, so that nobody has to wait for it."""
        if not self.services.metadata.has_topic(self.topic):
            return False
        load = self._loads.get(self.partition_of(key))
        return load is None or load.done()

    async def make_ready(self, key: str) -> None:
        """Creates the topic if need be, and waits a while for the key's shard."""
        await ensure_topic(self.services, self.topic)
        load = self._loads.get(self.partition_of(key))
        if load is not None:
            await asyncio.wait((load,), timeout=LOAD_WAIT_S)

    # ------------------------------------------------------------------------------- following

    def _follow(self, changes: Sequence[Change]) -> None:
        deleted = []
        for change in changes:
            if isinstance(change, TopicDeleted):
                deleted.append(change.name)
            elif isinstance(change, TopicCreated) and change.topic.name == self.topic:
                self._open(change.topic.partitions)
            elif isinstance(change, PartitionsAdded) and change.topic.name == self.topic:
                self._open(change.indexes)
            elif isinstance(change, LeaderChanged) and change.topic.name == self.topic:
                self._lead_or_leave(change.partition_index, change.partition.leader)
        if self.topic in deleted:
            self.close()
        elif deleted:
            self.topics_deleted(deleted)

    def _lead_or_leave(self, index: int, leader: int) -> None:
        """A shard stays as it is where only the epoch of its leader is new."""
        if leader == self.services.node_id:
            if index not in self._shards:
                self._open((index,))
        elif index in self._shards:
            self._loads.pop(index)
            self.shard_left(index)
            self._shards.pop(index).close(
                NotCoordinator(f"{self.topic}-{index} is led by node {leader}")
            )

    def _open(self, indexes: Collection[int]) -> None:
        services = self.services
        for index in indexes:
            if services.metadata.leader_of(self.topic, index) != services.node_id:
                continue
            shard = self._shards[index] = self.new_shard(index)
            self._loads[index] = shard.start_loading()
