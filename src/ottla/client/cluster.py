"""A cluster as one thing: finds brokers and leaders, and asks again when one has moved or is gone.

One `Cluster` lives on one event loop. Questions that only wait (fetches) have a connection of their
own to each broker, since a broker answers what comes over one connection in turn.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ottla.client import fetch_request, offsets, produce_request
from ottla.client.connection import TALK, Connection
from ottla.client.failures import (
    BadReply,
    ClientFailed,
    GaveUp,
    Unreachable,
    is_passing,
    refusal,
    together,
)
from ottla.client.lanes import Identity
from ottla.client.metadata import Image
from ottla.client.settings import ClientSettings
from ottla.client.values import Fetched, FoundOffset, Produced, TopicInfo
from ottla.errors import ErrorCode, LeaderNotAvailable, OttlaError
from ottla.types import NodeId, ProducerEpoch, ProducerId, TopicPartition
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.schema import Buffer, Message

if TYPE_CHECKING:
    from ottla.client.producer import Producer

logger = logging.getLogger(__name__)

BACKOFF_S_MAX: Final = 1.0
# How long a topic that no broker knows may be one that was made a moment ago.
UNKNOWN_TOPIC_PATIENCE_S: Final = 2.0

T = TypeVar("T")
R = TypeVar("R", bound=Message)


class Cluster:
    """`async with Cluster(settings) as cluster: …`; nothing is opened before it is needed."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.image = Image()
        self.coordinators: dict[str, str] = {}
        # Those that have done their work and wait for more (see `producer.borrow`).
        self.idle_producers: list[Producer] = []
        self._connections: dict[tuple[str, str], Connection] = {}
        self._opening: dict[tuple[str, str], asyncio.Lock] = {}
        self._leaving: list[Connection] = []
        self._tls: ssl.SSLContext | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._is_closed = True
        for connection in (*self._connections.values(), *self._leaving):
            connection.abort("the client is closed")
        self._connections.clear()
        self._leaving.clear()
        # One turn of the loop, in which the transports let go of their sockets.
        await asyncio.sleep(0)

    # ------------------------------------------------------------------------------ questions

    async def topics(self, names: Collection[str] | None = None) -> dict[str, TopicInfo]:
        """All topics, or those of these names that exist."""

        async def attempt() -> dict[str, TopicInfo]:
            return await self.refresh(names)

        return await self.retry("asking for the topics", attempt)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, FoundOffset]:
        """Offsets by time in ms, or -1 for the end and -2 for the beginning."""
        return await offsets.list_offsets(self, wanted, read_committed=read_committed)

    async def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        read_committed: bool = False,
    ) -> Fetched:
        """The batches from `offset` on; raises OffsetOutOfRange with the offsets that exist."""
        wish = fetch_request.Wish(
            partition, offset, max_bytes, min_bytes, max_wait_ms, read_committed
        )
        return await fetch_request.fetch(self, wish)

    async def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The group's positions, without the partitions for which it has none."""
        return await offsets.committed(self, group, partitions)

    async def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Stores positions, without being a member of the group."""
        await offsets.commit(self, group, positions)

    async def init_producer(self) -> Identity:
        """A producer id and its epoch, for an idempotent producer."""

        async def attempt() -> Identity:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            reply = await self.ask_any(request, InitProducerIdResponse)
            if reply.error_code:
                raise refusal(reply.error_code, "a new producer id")
            return Identity(ProducerId(reply.producer_id), ProducerEpoch(reply.producer_epoch))

        return await self.retry("asking for a producer id", attempt)

    async def produce(
        self, batches: Mapping[TopicPartition, Buffer], *, acks: int, timeout_ms: int
    ) -> dict[TopicPartition, Produced]:
        """One request to the one leader of all these; tries once, and raises if it gets lost."""
        return await produce_request.produce(self, batches, acks=acks, timeout_ms=timeout_ms)

    # ------------------------------------------------------------------------------- metadata

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        """The node id, as far as it is known; `refresh` asks for it."""
        return self.image.leader_of(partition)

    def forget_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        self.image.forget(partitions)

    async def refresh(self, topics: Collection[str] | None) -> dict[str, TopicInfo]:
        """Asks one broker for these topics, or for all, once."""
        names = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        return self.image.fold(await self.ask_any(request, MetadataResponse))

    async def by_leader(
        self, partitions: Collection[TopicPartition]
    ) -> dict[NodeId, list[TopicPartition]]:
        """Partitions by the node that leads them; one without a leader raises what is known."""
        unknown = [tp for tp in partitions if self.image.leader_of(tp) is None]
        if unknown:
            topics = await self.refresh(sorted({tp.topic for tp in partitions}))
            self._check_leaders(partitions, topics)
        grouped: dict[NodeId, list[TopicPartition]] = {}
        for partition in partitions:
            leader = self.image.leader_of(partition)
            assert leader is not None, partition
            grouped.setdefault(leader, []).append(partition)
        return grouped

    def _check_leaders(
        self, partitions: Iterable[TopicPartition], topics: Mapping[str, TopicInfo]
    ) -> None:
        failures: dict[TopicPartition, OttlaError] = {}
        for partition in partitions:
            if self.image.leader_of(partition) is not None:
                continue
            topic = topics.get(partition.topic)
            if topic is None or partition.partition not in topic.partitions:
                failures[partition] = refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition)
            else:
                failures[partition] = LeaderNotAvailable(f"{partition} has no leader")
        if failures:
            raise together(failures)

    # ---------------------------------------------------------------------------- connections

    async def to_node(self, node_id: NodeId, use: str = TALK) -> Connection:
        address = self.image.addresses.get(node_id)
        if address is None:
            raise LeaderNotAvailable(f"broker {node_id} is not in the cluster's metadata")
        return await self.to_address(address, use)

    async def to_address(self, address: str, use: str = TALK) -> Connection:
        """The open connection for this use, or a new one; many may ask, one opens."""
        key = (address, use)
        connection = self._connections.get(key)
        if connection is not None and connection.is_usable:
            return connection
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is not None and connection.is_usable:
                return connection
            if self._is_closed:
                raise ClientFailed("the client is closed")
            self._retire(self._connections.pop(key, None))
            if self._tls is None:
                self._tls = self.settings.security.tls_context()
            opened = await Connection.open(address, self.settings, self._tls)
            if self._is_closed:
                opened.abort("the client is closed")
                raise ClientFailed("the client is closed")
            self._connections[key] = opened
            return opened

    def _retire(self, connection: Connection | None) -> None:
        """A connection whose login runs out is closed when its requests are answered."""
        if connection is not None:
            self._leaving.append(connection)
        for old in [old for old in self._leaving if old.is_idle]:
            old.abort("replaced by a new connection")
            self._leaving.remove(old)

    async def ask_any(self, request: Message, kind: type[R]) -> R:
        """Asks whichever broker answers: those we talk to first, those we were told of last."""
        talking = [
            address
            for (address, use), connection in self._connections.items()
            if use == TALK and connection.is_usable
        ]
        known = self.image.addresses.values()
        addresses = list(dict.fromkeys((*talking, *known, *self.settings.bootstrap)))
        failures: list[ClientFailed] = []
        for address in addresses:
            try:
                connection = await self.to_address(address)
                return await connection.ask(request, kind)
            except (Unreachable, BadReply) as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        strange = [error for error in failures if isinstance(error, BadReply)]
        if strange:
            raise strange[0]
        raise Unreachable(f"no broker answers: {'; '.join(map(str, failures))}")

    # -------------------------------------------------------------------------------- retries

    async def retry(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Tries until it works, fails for good, or has been failing for `retry_timeout_s`."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        pause_s = self.settings.retry_backoff_s
        while True:
            try:
                return await attempt()
            except OttlaError as error:
                tried_s = loop.time() - begun_s
                is_new = tried_s < UNKNOWN_TOPIC_PATIENCE_S
                if self._is_closed or not is_passing(error, soon=is_new):
                    raise
                if tried_s + pause_s > self.settings.retry_timeout_s:
                    raise GaveUp(f"{what}: tried for {tried_s:.0f} s; {error}") from error
                logger.info("%s: %s; another try in %.1f s", what, error, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_S_MAX)
