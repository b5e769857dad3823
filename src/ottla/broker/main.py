"""The composition root: the only place where the parts of a broker are wired together."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from ottla.broker import logs
from ottla.broker.chores import Chores
from ottla.broker.clock import SystemClock, SystemEntropy
from ottla.broker.connection import Limits, Listener, Outbox
from ottla.broker.disk import RealDisk
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.flusher import Flusher
from ottla.broker.gauges import register_gauges
from ottla.broker.groups import GroupService
from ottla.broker.metadata import BrokerConfigChanged, Change, MetadataCache
from ottla.broker.metrics import LoopDelayProbe, Metrics
from ottla.broker.partition import Home, Partition
from ottla.broker.partitions import Partitions, log_config
from ottla.broker.registration import register
from ottla.broker.router import APIS, Router
from ottla.broker.runtime import Runtime
from ottla.broker.services import Services
from ottla.broker.waiting import Deadlines
from ottla.cluster.brokers import Registration
from ottla.cluster.controller import Controller
from ottla.config import BrokerConfig, TopicConfig
from ottla.config.listeners import Address
from ottla.errors import CannotStart
from ottla.gateway.http import HttpReply, HttpServer, json_reply
from ottla.log.checkpoints import RECOVERY_POINTS, read_offsets
from ottla.log.directory import DataDirectory, Identity, encode_uuid
from ottla.log.handles import Handles
from ottla.log.log import Log
from ottla.ports import Disk
from ottla.quorum.state import FILE_NAME as QUORUM_FILE
from ottla.quorum.state import QuorumState, decode_state, elect_self, encode_state
from ottla.types import METADATA_TOPIC, METADATA_TOPIC_ID, NodeId, TopicPartition
from ottla.wire.messages.metadata_records import BrokerEndpoint

logger = logging.getLogger(__name__)

STOP_GRACE_S: Final = 5.0
IO_THREADS: Final = 4
OPEN_FILES_WANTED: Final = 1_048_576
METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
# With the usual 5 ms a finished sync could wait that long for its turn behind a busy loop.
THREAD_SWITCH_S: Final = 0.000_5
# What a request makes dies without the collector's help; Python's 700 would have it look for
# cycles every twenty requests.
GC_THRESHOLDS: Final = (20_000, 20, 20)
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
BUFFER_BYTES_KEPT: Final = 16 * 1024 * 1024
FREE_BYTES_KEPT: Final = 32 * 1024 * 1024
PRELOAD_PAUSE_S: Final = 0.002


class ReadyInfo(NamedTuple):
    """What a person, or a test, wants to know of a broker that has just started."""

    kafka: str
    http: str | None
    data_dir: str
    was_clean: bool
    seconds: float


class Broker:
    """One node. `start` returns when clients are served, `stop` when everything is on disk."""

    def __init__(self, config: BrokerConfig, disk: Disk | None = None) -> None:
        self.config = config
        self._disk = disk or RealDisk()
        self._clock = SystemClock()
        self._random = SystemEntropy()
        self._metrics = Metrics()
        self._outbox = Outbox()
        self._servers: list[asyncio.Server] = []
        self._preloading: asyncio.Task[None] | None = None

    async def start(self) -> ReadyInfo:
        started = perf_counter()
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(IO_THREADS, thread_name_prefix="io"))
        _raise_open_files()
        self._data = DataDirectory(self._disk, os.path.abspath(self.config.data_dir))
        self._data.hold()
        is_new = self._data.read_identity() is None
        self._identity = self._identify()
        was_clean = self._data.take_clean_marker() or is_new
        self._handles = Handles(self._disk, self.config.log_open_files_max)
        self._flusher = self._new_flusher("data")
        self._internal_flusher = self._new_flusher("internal")
        await self._start_metadata(was_clean)
        self._partitions = Partitions(
            self._loop,
            self._clock,
            self._random,
            self._disk,
            self._data,
            self._handles,
            self.config,
            self._metadata,
            self._metrics,
            self._flusher,
            self._internal_flusher,
            self._controller.partition,
        )
        services = self._new_services()
        addresses = await self._listen(services)
        await self._join_cluster(addresses)
        self._partitions.open_all(was_clean)
        self._metadata.on_change(self._partitions.follow)
        self._metadata.on_change(self._follow_settings)
        self._take_settings(self._metadata.broker_config)
        self._partitions.start_checkpoints()
        self._partitions.start_probing()
        self._chores = self._new_chores()
        self._chores.start()
        services.groups.start()
        for server in self._servers:
            await server.start_serving()
        self._listener.start()
        self._probe = LoopDelayProbe(self._loop, self._metrics.loop_delay)
        self._probe.start()
        self._preloading = self._loop.create_task(self._preload())
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        return ReadyInfo(
            kafka=str(addresses[0]),
            http=None if self._http_address is None else str(self._http_address),
            data_dir=self._data.path,
            was_clean=was_clean,
            seconds=perf_counter() - started,
        )

    def _identify(self) -> Identity:
        """Whose data this is; a new directory becomes ours."""
        identity = self._data.read_identity()
        node_id = self.config.node_id
        if identity is None:
            identity = Identity(
                encode_uuid(self._random.bytes(16)), node_id, self._random.bytes(16)
            )
            self._data.write_identity(identity)
        elif identity.node_id != node_id:
            raise CannotStart(
                f"{self._data.path} belongs to node {identity.node_id}, not to node {node_id}: "
                f"start with --node-id {identity.node_id}, or choose another data directory."
            )
        return identity

    def _new_flusher(self, name: str) -> Flusher:
        flusher = Flusher(
            self._loop, self._disk, name, self._metrics.sync_latency.observe, self._outbox
        )
        flusher.start()
        return flusher

    async def _start_metadata(self, was_clean: bool) -> None:
        """Reads the metadata log and begins a new epoch of leading it."""
        config = TopicConfig.resolve(self.config, {})
        path = f"{self._data.path}/{RECOVERY_POINTS}"
        log = Log.open(
            self._disk,
            self._data.partition_path(METADATA_PARTITION),
            log_config(config, self.config),
            now_ms=self._clock.now().wall_ms,
            clean=was_clean,
            recovery_point=read_offsets(self._disk, path).get(METADATA_PARTITION, 0),
            handles=self._handles,
        )
        epoch = self._elect()
        partition = Partition(
            METADATA_PARTITION,
            METADATA_TOPIC_ID,
            log,
            epoch,
            config,
            self._internal_flusher,
            self._metrics.topic(METADATA_TOPIC),
            Home(self._data, METADATA_PARTITION, METADATA_TOPIC_ID, is_settled=False),
        )
        partition.lead(epoch)
        self._metadata = MetadataCache(self.config)
        self._controller = Runtime(
            self._loop,
            self._clock,
            partition,
            Controller(self.config, self._random),
            self._metadata.committed,
        )
        await self._controller.load()

    def _elect(self) -> int:
        directory = self._data.partition_path(METADATA_PARTITION)
        self._disk.make_directory(directory)
        path = f"{directory}/{QUORUM_FILE}"
        state = QuorumState()
        if self._disk.exists(path):
            state = decode_state(self._disk.read_file(path))
        state = elect_self(state, NodeId(self.config.node_id))
        self._disk.write_file(path, encode_state(state))
        return state.leader_epoch

    def _new_services(self) -> Services:
        services = Services(
            config=self.config,
            loop=self._loop,
            clock=self._clock,
            random=self._random,
            disk=self._disk,
            node_id=self.config.node_id,
            cluster_id=self._identity.cluster_id,
            metadata=self._metadata,
            controller=self._controller,
            groups=GroupService(),
            partitions=self._partitions,
            fetch_sessions=FetchSessions(
                self._clock,
                self._random,
                self.config.max_incremental_fetch_session_cache_slots,
            ),
            deadlines=Deadlines(self._loop),
            metrics=self._metrics,
        )
        services.groups.attach(services)
        self._services = services
        return services

    async def _listen(self, services: Services) -> list[Address]:
        """Binds all sockets without serving yet; a taken port stops the start here."""
        self._listener = Listener(
            self._loop,
            Router(services),
            Limits(self.config),
            self._metrics,
            self._outbox,
        )
        register_gauges(self._metrics, services, self._listener)
        bound = []
        for wanted in self.config.bound():
            server = await self._loop.create_server(
                partial(self._listener.connection, wanted.name),
                wanted.host,
                wanted.port,
                backlog=self.config.socket_listen_backlog_size,
                start_serving=False,
            )
            self._servers.append(server)
            bound.append(Address(wanted.host, server.sockets[0].getsockname()[1]))
        self._http_address = None
        http = self.config.http_address()
        if http is not None:
            self._http = HttpServer(
                {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._scrape}
            )
            server = await self._loop.create_server(
                self._http.protocol_factory, http.host, http.port, start_serving=False
            )
            self._servers.append(server)
            self._http_address = Address(http.host, server.sockets[0].getsockname()[1])
        return bound

    async def _join_cluster(self, bound: list[Address]) -> None:
        """Registers this broker and begins a new leader epoch for all it leads."""
        endpoints = []
        for position, listener in enumerate(self.config.advertised()):
            port = listener.port or bound[position].port
            endpoints.append(BrokerEndpoint(listener.name, listener.host, port, 0))
        registration = Registration(
            self.config.node_id,
            self._random.bytes(16),
            endpoints,
            self.config.broker_rack,
            self._identity.directory_id,
        )
        self._broker_epoch = await register(self._controller, registration)

    def _follow_settings(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, BrokerConfigChanged):
                self._take_settings(change.config)

    def _take_settings(self, config: BrokerConfig) -> None:
        """The settings that may change while the broker runs."""
        logs.set_level(config.log_level)
        self._listener.limits = Limits(config)

    def _new_chores(self) -> Chores:
        return Chores(())

    async def _preload(self) -> None:
        """Does while nobody waits what the first requests would have to wait for."""
        _keep_freed_memory()
        for key in APIS:
            await asyncio.sleep(PRELOAD_PAUSE_S)
            self._listener.router.preload(key)

    # ------------------------------------------------------------------------------------ HTTP

    def _healthz(self) -> HttpReply:
        return json_reply(200, {"status": "alive"})

    def _readyz(self) -> HttpReply:
        failing = self._partitions.failing()
        if not failing:
            return json_reply(200, {"status": "ready"})
        reasons = [f"{partition.name}: {partition.failure}" for partition in failing[:10]]
        return json_reply(503, {"status": "storage failing", "reasons": reasons})

    def _scrape(self) -> HttpReply:
        return HttpReply(200, self._metrics.render(), "text/plain; version=0.0.4; charset=utf-8")

    # -------------------------------------------------------------------------------- stopping

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        if self._preloading is not None:
            self._preloading.cancel()
        self._probe.stop()
        await self._listener.stop(STOP_GRACE_S)
        if self._http_address is not None:
            self._http.close()
        await self._chores.stop()
        self._services.groups.close()
        self._controller.close()
        self._services.deadlines.close()
        await self._flusher.stop()
        await self._internal_flusher.stop()
        is_clean = await self._partitions.close()
        try:
            self._controller.partition.log.close()
        except OSError as error:
            logger.error("the metadata log is not closed cleanly: %s", error)
            is_clean = False
        if is_clean:
            self._data.leave_clean_marker(self._broker_epoch)
        self._data.release()


def run(config: BrokerConfig, on_ready: Callable[[ReadyInfo], None]) -> int:
    """Runs a broker until SIGTERM or SIGINT; the exit code is for the shell."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_serve(config, on_ready))


async def _serve(config: BrokerConfig, on_ready: Callable[[ReadyInfo], None]) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(config)
    info = await broker.start()
    on_ready(info)
    await stopping.wait()
    logger.info("stopping")
    await broker.stop()
    logger.info("stopped")
    return 0


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _keep_freed_memory() -> None:
    """Tells glibc to keep the buffers of large requests and replies for the next ones.

    Otherwise it gives each back to the kernel, and the next one's pages are faulted in anew.
    """
    import ctypes  # costs 10 ms that the start need not spend

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, BUFFER_BYTES_KEPT)
        mallopt(M_TRIM_THRESHOLD, FREE_BYTES_KEPT)


def _raise_open_files() -> None:
    """Every connection and every busy segment is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (OPEN_FILES_WANTED, hard):
        if wanted > soft:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
            except (ValueError, OSError):
                continue
            return
