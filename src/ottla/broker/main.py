"""The composition root: the only place where the parts of a broker are wired together."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from ottla.broker import logs
from ottla.broker.clock import SystemClock, SystemEntropy
from ottla.broker.control.balancing import BalancingChore
from ottla.broker.control.groups import GroupService
from ottla.broker.control.metadata import BrokerConfigChanged, Change, MetadataCache
from ottla.broker.control.metadata_follower import MetadataFollower
from ottla.broker.control.metadata_log import MetadataLog
from ottla.broker.control.node_connection import Brokers
from ottla.broker.control.predecessors import Predecessors
from ottla.broker.control.producer_ids import ProducerIds
from ottla.broker.control.quorum_setup import Seat, new_quorum
from ottla.broker.control.quorum_voters import listener_name
from ottla.broker.control.refusal import leave_as_found
from ottla.broker.control.runtime import Runtime
from ottla.broker.control.snapshots import MetadataSnapshots
from ottla.broker.control.transactions import TransactionService
from ottla.broker.counters import LoopDelayProbe, Metrics
from ottla.broker.housekeeping import Housekeeping
from ottla.broker.membership import Membership
from ottla.broker.metrics.gauges import register_gauges
from ottla.broker.metrics.pages import http_server
from ottla.broker.network.connection import Connections, Limits, Outbox
from ottla.broker.network.doors import Door
from ottla.broker.network.fetch_sessions import FetchSessions
from ottla.broker.network.listening import (
    bind,
    bind_shared,
    close_all,
    give_routers,
    http_door,
    known_to_nodes,
    open_all,
    told_to_nodes,
)
from ottla.broker.network.router import APIS, Router
from ottla.broker.network.sockets import SocketNetwork
from ottla.broker.network.waiting import Deadlines, Parking
from ottla.broker.ready import ReadyInfo
from ottla.broker.replication.replication import Replication
from ottla.broker.services import Services
from ottla.broker.storage.checkpoints import Checkpoints
from ottla.broker.storage.closing import close_partitions, leave_clean_markers
from ottla.broker.storage.compaction import Compactor
from ottla.broker.storage.compaction_helper import CompactionHelper
from ottla.broker.storage.departures import Departures
from ottla.broker.storage.directory_moves import DirectoryMoves
from ottla.broker.storage.disk import RealDisk
from ottla.broker.storage.flusher import Flusher, stalled_bytes_max
from ottla.broker.storage.opening import Opening
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.partition_opener import PartitionOpener
from ottla.broker.storage.partitions import Partitions
from ottla.broker.storage.repairs import Repairs
from ottla.broker.storage.retention import Shortener
from ottla.broker.storage.stores import METADATA_PARTITION, Store, lacking_room, open_stores
from ottla.broker.storage.truncation import Truncation
from ottla.broker.threads import RealThreads
from ottla.cluster.controller import Controller
from ottla.cluster.features import check_known
from ottla.config import BrokerConfig, TopicConfig
from ottla.config.listeners import Address
from ottla.errors import CannotStart, OttlaError
from ottla.log.handles import Handles
from ottla.ports import Clock, Disk, Network, Random, Threads
from ottla.types import METADATA_TOPIC, METADATA_TOPIC_ID, LeaderEpoch, NodeId
from ottla.wire.schema import Message

logger = logging.getLogger(__name__)

STOP_GRACE_S: Final = 5.0
IO_THREADS: Final = 4
PRELOAD_PAUSE_S: Final = 0.002
_NO_ROOM: Final = "the disk is full. Make room there; a start needs about a megabyte."


class Broker:
    """One node. `start` returns when clients are served, `stop` when everything is on disk."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        threads: Threads | None = None,
        network: Network | None = None,
        start_compactor: Callable[[], Awaitable[Compactor]] | None = None,
    ) -> None:
        self.config = config
        self._node_id = NodeId(config.node_id)
        self._disk = disk or RealDisk()
        self._clock = clock or SystemClock()
        self._random = random or SystemEntropy()
        self._threads = threads or RealThreads()
        self._network = network or SocketNetwork()
        self._start_compactor = start_compactor or CompactionHelper.start
        self._metrics = Metrics()
        self._outbox = Outbox()
        # Those that others have as well are opened last and closed first.
        self._doors, self._shared_doors = list[Door](), list[Door]()
        self._preloading: asyncio.Task[None] | None = None
        self.has_stuck_disk = False
        # From when all is wired together until partitions are opened.
        self._can_back_out = False

    async def start(self) -> ReadyInfo:
        """Of all that it has to write, nothing may fail for lack of room without saying where."""
        try:
            return await self._start()
        except BaseException as error:
            await self._back_out()
            place = lacking_room(error)
            if place is None:
                raise
            raise CannotStart(f"{place}: {_NO_ROOM}") from error

    async def _back_out(self) -> None:
        """Whoever is not let in, or told to stop before, leaves nothing half done."""
        if not self._can_back_out:
            return
        self._can_back_out = False
        self._membership.vanish()
        close_all((*self._doors, *self._shared_doors))
        await self._connections.stop(0)
        self._controller.close()
        self._quorum.close()
        self._membership.close()
        self._checkpoints.stop()
        self._repairs.stop()
        await asyncio.gather(*map(self._stop_flushers, self._stores))
        if not self.has_stuck_disk:
            leave_as_found(self._disk, self._stores, self._controller.partition)
        self._stores.close()
        self._io.close()

    async def _start(self) -> ReadyInfo:
        started_s = self._clock.steady_s()
        self._loop = asyncio.get_running_loop()
        # Has the reason when the broker cannot go on; whoever runs it then has to stop it.
        self.given_up: asyncio.Future[str] = self._loop.create_future()
        # For what belongs to no data directory, or to the whole of one.
        self._io = self._threads.executor("io", IO_THREADS)
        self._stores = open_stores(self._disk, self.config, self._random, self._threads)
        self._stores.give_flushers(self._new_flusher)
        self._handles = Handles(self._disk, self.config.log_open_files_max)
        self._handles.is_slow = self._stores.is_slow
        await self._start_metadata()
        self._wire_membership()
        self._wire_partitions()
        services = self._new_services()
        self._can_back_out = True
        addresses = await self._listen(services)
        # The metadata log may fail before the others are opened, and the start waits for it.
        self._repairs.start_probing()
        if self._quorum.has_others:
            await open_all(self._doors)
            await self._membership.join_quorum()
        check_known(self._metadata.image)
        await self._membership.join_cluster(addresses)
        self._can_back_out = False
        opening_s = self._clock.steady_s()
        self._follower.open_all()
        recovery_s = self._clock.steady_s() - opening_s
        self._stores.measure()
        self._directory_moves.resume()
        self._metadata.on_change(self._follower.follow)
        self._metadata.on_change(self._replication.see)
        self._metadata.on_change(self._follow_settings)
        self._take_settings(self._metadata.broker_config)
        self._checkpoints.start()
        self._membership.standing_aside.start_looking()
        self.housekeeping = Housekeeping(
            services, self._handles, self._checkpoints, self._start_compactor
        )
        self.housekeeping.start(self._replication.in_sync, BalancingChore(services))
        self.housekeeping.register_gauges(recovery_s)
        services.groups.start()
        services.transactions.start()
        services.is_serving = True
        if self.config.is_broker:
            await self._membership.lifecycle.become_unfenced()
        if not self._quorum.has_others:
            await open_all(self._doors)
        await open_all(self._shared_doors)
        self._connections.start()
        self._probe = LoopDelayProbe(self._loop, self._metrics.loop_delay)
        self._probe.start()
        self._preloading = self._loop.create_task(self._preload())
        return ReadyInfo(
            kafka=str(addresses[self._main_listener()]),
            serves_clients=self.config.is_broker,
            http=None if self._http_door is None else str(self._http_door.address),
            data_dir=", ".join(store.path for store in self._stores),
            was_clean=self._stores.was_clean,
            seconds=self._clock.steady_s() - started_s,
        )

    def _new_flusher(self, store: Store, kind: str) -> Flusher:
        return Flusher(
            self._loop,
            self._threads,
            self._clock,
            self._disk,
            f"{kind}-{os.path.basename(store.path)}",
            self._metrics.sync_latency(store.path).observe,
            self._outbox,
            partial(self._take_offline, store),
            stalled_bytes_max(self.config),
            self.config.log_dir_stall_timeout_ms / 1000,
        )

    async def _start_metadata(self) -> None:
        """Reads the metadata log; the only voter begins a new epoch of leading it."""
        store, config = self._stores.metadata, TopicConfig.resolve(self.config, {})
        self._log = MetadataLog(self._clock, self._disk, self._handles, store, self.config)
        self._snapshots = MetadataSnapshots(
            self._clock, self._io, self._disk, self._log.directory, self.config
        )
        snapshot = self._snapshots.look()
        log = self._log.open(snapshot)
        state = self._log.read_state()
        base_offset = log.start_offset if snapshot is None else snapshot.end_offset
        where = known_to_nodes(self.config)
        seat = Seat(self.config, store.directory_id, where, snapshot, log)
        partition = Partition(
            METADATA_PARTITION,
            METADATA_TOPIC_ID,
            log,
            LeaderEpoch(state.leader_epoch),
            config,
            store.internal_flusher,
            self._metrics.topic(METADATA_TOPIC),
            Home(store.data, METADATA_PARTITION, METADATA_TOPIC_ID, is_durable=False),
            self._node_id,
            # What only a majority commits, nobody else can vouch for.
            None if seat.is_alone else log.position_at(base_offset),
        )
        self._quorum = new_quorum(
            self._loop,
            self._clock,
            self._random,
            self.config,
            self._stores,
            seat,
            partition,
            state,
            partial(store.run, self._log.save_state),
            self._snapshots,
            self._give_up,
        )
        self._metadata = MetadataCache(self.config)
        self._metadata.on_missed = self._give_up
        self._controller = Runtime(
            self._loop,
            self._clock,
            self._io,
            partition,
            Controller(
                self.config,
                self._random,
                self._stores.cluster_id,
                self.config.broker_session_timeout_ms,
                Predecessors(self._quorum, self._clock).take,
            ),
            self._metadata.committed,
            self._snapshots.newest,
            on_snapshot=self._metadata.replaced,
        )
        self._snapshots.take_of(self._controller, self._metadata, self._quorum)
        if seat.is_alone:
            await self._quorum.start()
            await self._snapshots.replay()
        self._quorum.run_for(self._controller)

    def _wire_membership(self) -> None:
        self._partitions = Partitions(
            self._controller.partition, self._metadata.absence_of, self._stores
        )
        self._membership = Membership(
            self._loop,
            self._clock,
            self._random,
            self._network,
            self.config,
            self._stores,
            self._quorum,
            self._controller,
            self._metadata,
            self._partitions,
            self._answer,
            self._look_before_requests,
        )

    def _wire_partitions(self) -> None:
        self._departures = Departures(self._loop, self._io, self._disk, self._random)
        self._repairs = Repairs(
            self._loop,
            self._clock,
            self._partitions,
            lambda partitions: self._replication.handover.give_up(partitions),
            self._quorum.resign,
            self._healed,
        )
        self._checkpoints = Checkpoints(
            self._loop,
            self._clock,
            self._disk,
            self._stores,
            self._partitions,
            self._repairs,
            self.config.log_flush_offset_checkpoint_interval_ms / 1000,
        )
        self._truncation = Truncation(self._clock, self._stores, self._checkpoints)
        self._quorum.cut_with(self._truncation)
        self._shortener = Shortener(
            self._loop, self._disk, self._stores, self._checkpoints.save_start_offsets
        )
        self._replication = Replication(
            self._loop,
            self._clock,
            self.config,
            self._metadata,
            self._partitions,
            self._membership.channel,
            lambda: self._membership.lifecycle.epoch,
            self._truncation,
            self._shortener.shorten,
        )
        self._membership.lifecycle.on_registered = self._replication.start
        self._repairs.on_damaged = self._replication.refills.see
        opener = PartitionOpener(
            self._node_id,
            self._clock,
            self._disk,
            self._handles,
            self._metrics,
            self._departures,
            self._partitions.take_offline,
        )
        self._follower = MetadataFollower(
            self._node_id,
            self._clock,
            self._metadata,
            self._stores,
            self._partitions,
            opener,
            self._departures,
            self._metrics,
            self._membership.reports.places,
            self._replication.followers.role_changed,
            lambda: self._membership.lease.is_held,
            lambda name: self._directory_moves.take_preference(name),
        )
        self._directory_moves = DirectoryMoves(
            self._loop,
            self._disk,
            self._random,
            self._stores,
            self._partitions,
            self._checkpoints,
            self._shortener,
            self._departures,
            self._replication.throttles.directories,
            self._follower.tell_places,
            self._follower.is_told,
            self.config.log_dir_stall_timeout_ms / 1000,
        )

    def _look_before_requests(self) -> None:
        self._connections.before_requests = self._membership.lease.look
        self._services.parking.before_completing = self._membership.lease.look

    async def _answer(self, request: Message) -> Message:
        return await self._services.router.answer(request)

    def _new_services(self) -> Services:
        deadlines = Deadlines(self._loop)
        self._brokers = Brokers(self.config, self._metadata, self._answer)
        producer_ids = ProducerIds(
            self._membership.channel,
            self.config.node_id,
            lambda: self._membership.lifecycle.epoch,
            self.config.request_timeout_ms / 1000,
        )
        services = Services(
            config=self.config,
            loop=self._loop,
            clock=self._clock,
            random=self._random,
            disk=self._disk,
            io=self._io,
            node_id=self.config.node_id,
            cluster_id=self._stores.cluster_id,
            metadata=self._metadata,
            controller=self._controller,
            leadership=self._quorum,
            quorum=self._quorum,
            snapshots=self._snapshots,
            channel=self._membership.channel,
            probes=self._membership.probes,
            producer_ids=producer_ids,
            groups=GroupService(),
            transactions=TransactionService(self._brokers, producer_ids),
            stores=self._stores,
            partitions=self._partitions,
            shortener=self._shortener,
            truncation=self._truncation,
            directory_moves=self._directory_moves,
            fetch_sessions=FetchSessions(
                self._clock,
                self._random,
                self.config.max_incremental_fetch_session_cache_slots,
                tells_replicas_at_once=self.config.is_rack_aware,
            ),
            deadlines=deadlines,
            parking=Parking(self._loop, deadlines),
            opening=Opening(self._threads),
            metrics=self._metrics,
            on_misplaced=self._replication.in_sync.notice,
            throttles=self._replication.throttles,
        )
        services.groups.attach(services)
        services.transactions.attach(services)
        self._services = services
        return services

    async def _listen(self, services: Services) -> dict[str, Address]:
        """Binds all sockets without serving yet; a taken port stops the start here."""
        services.router = Router(services)
        self._connections = Connections(
            self._loop,
            services.router,
            Limits(self.config),
            self._metrics,
            self._outbox,
        )
        give_routers(self._connections, services)
        self._connections.on_lost = (
            self._membership.probes.connection_lost,
            services.fetch_sessions.lost,
        )
        register_gauges(self._metrics, services, self._connections)
        doors = await bind(self._network, self.config, self._connections)
        self._doors += doors.values()
        self._shared_doors = await bind_shared(self._network, self.config, self._connections)
        bound = {name: door.address for name, door in doors.items()}
        if self.config.is_controller:
            first = told_to_nodes(self.config, bound)[0]
            self._quorum.serves_at(listener_name(self.config), first.host, first.port)
        await self._bind_http()
        return bound

    def _main_listener(self) -> str:
        listeners = self.config.client_listeners() or self.config.controller_listeners()
        return listeners[0].name

    async def _bind_http(self) -> None:
        self._http_door: Door | None = None
        wanted = self.config.http_address()
        if wanted is None:
            return
        self._http = http_server(self._services)
        factory = self._http.protocol_factory
        self._http_door = http_door(self._network, self.config, wanted, factory)
        await self._http_door.bind()
        self._doors.append(self._http_door)

    # ------------------------------------------------------------------------ data directories

    def _healed(self, partition: Partition) -> None:
        if partition is self._controller.partition:
            self._quorum.log_renewed()
        else:
            self._replication.followers.log_renewed(partition)

    def _take_offline(self, store: Store, error: OSError) -> None:
        """A directory's disk has failed. Without the metadata's, or any, there is no broker."""
        if not store.is_online:
            return
        if store is self._stores.metadata:
            self._give_up(f"{store.path}, which holds the metadata log, has failed: {error}")
            return
        self._partitions.take_offline(store, error)
        if not any(each.takes_partitions for each in self._stores.online()):
            self._give_up(f"all data directories have failed, {store.path} last: {error}")
        else:
            self._membership.reports.offline(store.directory_id)

    def _give_up(self, reason: str) -> None:
        if not self.given_up.done():
            self.given_up.set_result(reason)

    def _follow_settings(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, BrokerConfigChanged):
                self._take_settings(change.config)
                self.housekeeping.chores.settings_changed()

    def _take_settings(self, config: BrokerConfig) -> None:
        """The settings that may change while the broker runs."""
        logs.set_level(config.log_level)
        self._connections.limits = Limits(config)

    async def _preload(self) -> None:
        """Does while nobody waits what the first requests would have to wait for."""
        routers = self._connections.routers.values() or (self._connections.router,)
        for key in APIS:
            await asyncio.sleep(PRELOAD_PAUSE_S)
            for router in routers:
                router.preload(key)

    def let_clients_go(self) -> None:
        """By another thread, while the loop stands still; to other nodes, where there are some."""
        if self._quorum.has_others:
            self._connections.shut_sockets()

    # -------------------------------------------------------------------------------- stopping

    async def stop(self) -> None:
        close_all(self._shared_doors)
        await self._membership.leave()
        close_all(self._doors)
        if self._preloading is not None:
            self._preloading.cancel()
        self._probe.stop()
        await self._connections.stop(STOP_GRACE_S)
        if self._http_door is not None:
            self._http.close()
        await self.housekeeping.chores.stop()
        await self._directory_moves.stop()
        await self._replication.stop()
        await self._snapshots.finish()
        await self._services.shortener.close()
        self._services.transactions.close()
        self._services.groups.close()
        self._brokers.close()
        self._controller.close()
        self._quorum.close()
        self._services.deadlines.close()
        self._services.opening.close()
        self._membership.close()
        self._checkpoints.stop()
        self._repairs.stop()
        await asyncio.gather(*map(self._stop_flushers, self._stores))
        clean = await close_partitions(
            self._disk, self._stores, self._partitions, self._checkpoints, self._departures
        )
        metadata = self._stores.metadata
        try:
            if metadata.is_online:
                self._controller.partition.close()
        except (OSError, OttlaError) as error:
            logger.error("the metadata log is not closed cleanly: %s", error)
            clean = [store for store in clean if store is not metadata]
        leave_clean_markers(clean, self._membership.lifecycle.epoch)
        self._stores.close()
        self._io.close()

    async def _stop_flushers(self, store: Store) -> None:
        """Of a disk that does not answer, nothing more is asked."""
        if not all(await asyncio.gather(*(flusher.stop() for flusher in store.flushers))):
            self.has_stuck_disk = True
            store.failure = store.failure or TimeoutError(errno.ETIMEDOUT, "does not answer")
