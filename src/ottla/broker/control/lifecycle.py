"""The life of this broker in its cluster: registered, unfenced, heard of, leaving (KIP-631).

A broker registers under a new incarnation before it opens its partitions, and is unfenced when it
has read the metadata and opened them: only then does it lead, each partition under a new epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.control.channel import ControllerChannel
from ottla.broker.control.lease import Lease
from ottla.cluster.directories import lies_offline
from ottla.cluster.features import SUPPORTED
from ottla.cluster.image import NO_BROKER_EPOCH
from ottla.cluster.registrations import place
from ottla.cluster.sessions import OWN_SHARE
from ottla.config import BrokerConfig
from ottla.errors import (
    BrokerNotRegistered,
    CannotStart,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRegistration,
    OttlaError,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from ottla.ports import Clock
from ottla.types import NO_NODE
from ottla.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.control.metadata import Change, MetadataCache

logger = logging.getLogger(__name__)

# While it is fenced, or leaves, a broker asks more often than its heartbeats are due.
ASKING_PAUSE_S: Final = 0.01
ASKING_PAUSE_S_MAX: Final = 0.5
# A broker that leaves waits so long for somebody to tell: those who could may be leaving as well.
LEAVE_ANSWER_S: Final = 1.0
# The controller answers with a code alone.
_REFUSALS: Final[Mapping[type[OttlaError], str]] = {
    InvalidRegistration: (
        "a data directory has the id of another broker's, was it copied? Take it out of log.dirs, "
        "or remove directory.id from its meta.properties"
    ),
    InconsistentClusterId: (
        "its data directory is of another cluster; start it with the directory, or the addresses, "
        "of one and the same"
    ),
    UnsupportedVersion: (
        "this version of Ottla does not know the cluster's levels of features; start the version "
        "that the others have"
    ),
}
HEARTBEATS_PER_SESSION: Final = 4
HEARTBEATS_PER_LEASE: Final = 2
FEATURES: Final = [Feature(name, *levels) for name, levels in SUPPORTED.items()]


class Lifecycle:
    def __init__(
        self,
        config: BrokerConfig,
        cluster_id: str,
        incarnation_id: bytes,
        previous_epoch: int,
        channel: ControllerChannel,
        metadata: MetadataCache,
        published_offset: Callable[[], int],
        clock: Clock,
        lease: Lease,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._previous_epoch = previous_epoch
        self._channel = channel
        self._metadata = metadata
        self._published_offset = published_offset
        self._clock = clock
        self._lease = lease
        self._timeout_s = config.request_timeout_ms / 1000
        session_s = config.broker_session_timeout_ms / 1000
        # As often as even the shortest lease needs.
        self._interval_s = min(
            config.broker_heartbeat_interval_ms / 1000,
            session_s * OWN_SHARE / HEARTBEATS_PER_LEASE,
        )
        # A heartbeat that is lost is followed by others before the session ends.
        self._answer_s = session_s / HEARTBEATS_PER_SESSION
        self._offline: list[bytes] = []
        self._news = asyncio.Event()
        self._is_aside = False
        self._has_to_tell = asyncio.Event()
        # The last heartbeat that the controller in this process was asked to answer.
        self._asked_here: Message | None = None
        self._beating: asyncio.Task[None] | None = None
        self._request = BrokerRegistrationRequest()
        self.epoch = NO_BROKER_EPOCH
        # Told of each registration: what this broker says is of another life from then on.
        self.on_registered: Callable[[], None] = lambda: None

    # ------------------------------------------------------------------------------- starting

    async def register(self, listeners: Sequence[Listener], log_dirs: Sequence[bytes]) -> None:
        self._request = BrokerRegistrationRequest(
            broker_id=self._config.node_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=list(listeners),
            features=FEATURES,
            rack=self._config.broker_rack,
            log_dirs=list(log_dirs),
            previous_broker_epoch=self._previous_epoch,
        )
        try:
            await self._register()
        except DuplicateBrokerRegistration as error:
            first = self._metadata.image.brokers.get(self._config.node_id)
            where = "another address" if first is None else place(first)
            raise CannotStart(
                f"Broker {self._config.node_id} is already running at {where}; "
                "give this one another node.id."
            ) from error
        except (InvalidRegistration, InconsistentClusterId, UnsupportedVersion) as error:
            raise CannotStart(
                f"The controller does not let this broker in: {_REFUSALS[type(error)]}. "
                "The controller's log says more."
            ) from error

    async def _register(self) -> None:
        reply = await self._channel.ask(self._request, BrokerRegistrationResponse, self._timeout_s)
        self.epoch = reply.broker_epoch
        self.on_registered()

    async def become_unfenced(self) -> None:
        """Returns when this broker leads what it is to lead."""
        self._metadata.on_change(self._see)
        pause_s = ASKING_PAUSE_S
        while (await self._beat()).is_fenced:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, ASKING_PAUSE_S_MAX, self._interval_s)
        # From here on it must be heard of, however long the elections take.
        self._beating = asyncio.get_running_loop().create_task(self._beat_on())
        while self._awaits_leading():
            self._news.clear()
            await self._news.wait()

    def _see(self, changes: Sequence[Change]) -> None:
        self._news.set()

    def _awaits_leading(self) -> bool:
        """Whether a partition has no leader yet though this broker could be it."""
        image, node_id = self._metadata.image, self._config.node_id
        own = image.brokers.get(node_id)
        if own is None or own.is_fenced:
            return True
        return any(
            partition.leader == NO_NODE
            and node_id in partition.isr
            and not lies_offline(own, partition)
            for topic in image.topics_by_id.values()
            for partition in topic.partitions.values()
        )

    # -------------------------------------------------------------------------------- serving

    async def _beat_on(self) -> None:
        pause_s = self._interval_s
        while True:
            await self._pause(pause_s)
            pause_s = min(self._interval_s, ASKING_PAUSE_S_MAX)
            try:
                await self._beat(self._answer_s)
                pause_s = self._interval_s
            except (StaleBrokerEpoch, BrokerNotRegistered) as error:
                logger.warning("this broker registers again: %s", error)
                await self._register_again()
            except OttlaError as error:
                logger.warning("no heartbeat: %s", error)
            except Exception:
                # Without heartbeats this broker would stay fenced for good.
                logger.exception("no heartbeat")

    async def _pause(self, seconds: float) -> None:
        """Until a heartbeat is due, or has something to tell."""
        try:
            async with asyncio.timeout(seconds):
                await self._has_to_tell.wait()
        except TimeoutError:
            pass
        self._has_to_tell.clear()

    def stand_aside(self, is_aside: bool) -> None:
        """Others are to lead what this broker leads; or it takes part again. It stops before any
        other can begin, and an answer to a heartbeat of before changes nothing in that.
        """
        self._is_aside = is_aside
        if is_aside:
            self._lease.lose()
        self._has_to_tell.set()

    async def _register_again(self) -> None:
        try:
            await self._register()
        except OttlaError as error:
            logger.warning("this broker is not registered: %s", error)

    async def _beat(
        self, timeout_s: float | None = None, *, want_shut_down: bool = False
    ) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._published_offset() - 1,
            want_fence=self._is_aside,
            want_shut_down=want_shut_down,
            offline_log_dirs=self._offline,
        )
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        sent_s = self._clock.steady_s()
        reply = await self._channel.ask(request, BrokerHeartbeatResponse, limit_s, self._answer_s)
        if reply.is_fenced or self._is_aside:
            self._lease.lose()
        else:
            self._lease.extend(sent_s, OWN_SHARE if request is self._asked_here else 1.0)
        return reply

    def asked_here(self, request: Message) -> None:
        """The controller is in this process, and is about to answer."""
        if isinstance(request, BrokerHeartbeatRequest):
            self._asked_here = request

    async def take_offline(self, directory_id: bytes) -> None:
        """A directory's disk has failed. The controller is told with each heartbeat from now on."""
        self._offline = [*self._offline, directory_id]
        await self._beat()

    # ------------------------------------------------------------------------------- stopping

    async def leave(self) -> None:
        """Has others take over what this broker leads, where there are others."""
        self.close()
        if not self._config.controlled_shutdown_enable or self._is_alone():
            return
        limit_s = self._config.controlled_shutdown_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                reply = await self._beat(LEAVE_ANSWER_S, want_shut_down=True)
                while not reply.should_shut_down:
                    await asyncio.sleep(ASKING_PAUSE_S)
                    reply = await self._beat(LEAVE_ANSWER_S, want_shut_down=True)
        except TimeoutError:
            logger.warning("others have not taken over in %g s; this broker stops", limit_s)
        except OttlaError as error:
            logger.warning("others are not told that this broker stops: %s", error)

    def _is_alone(self) -> bool:
        own = self._config.node_id
        return all(broker.id == own for broker in self._metadata.brokers())

    def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
