"""The data directories at work, each with threads of its own: none waits for another's disk.

A directory that cannot be used at the start, or whose disk fails while the broker runs, is offline
until a restart: its partitions answer with an error, all others go on. A full disk is not a broken
one: it refuses writes, and heals by itself.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ottla.cluster.directories import is_reserved
from ottla.config import BrokerConfig
from ottla.config.roles import is_alone
from ottla.errors import CannotStart, StorageFailed
from ottla.log.directory import DataDirectory, Identity, encode_uuid
from ottla.log.reserve import NO_ROOM, Reserve
from ottla.ports import Disk, Executor, Random, Threads
from ottla.types import METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.storage.flusher import Flusher
    from ottla.broker.storage.partition import Partition

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREADS_PER_STORE: Final = 4
LOOK_UPS_PER_STORE: Final = 2
# With less than this a disk is full.
FULL_BYTES: Final = 64 * 1024
METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
# What a disk says that is going, gone, or turned read-only by a file system that has lost trust.
_BROKEN: Final = frozenset(
    getattr(errno, name)
    for name in (
        "EIO",
        "EROFS",
        "ENODEV",
        "ENXIO",
        "EUCLEAN",
        "EREMOTEIO",
        "ENOMEDIUM",
        "ENOTCONN",
        "ESTALE",
        "ESHUTDOWN",
    )
    if hasattr(errno, name)
)


def is_broken(error: OSError) -> bool:
    """Whether this is a failed disk, rather than a full one, or a file that somebody took away."""
    return error.errno in _BROKEN


def is_no_room(error: OSError) -> bool:
    return error.errno in NO_ROOM


def lacking_room(error: BaseException) -> str | None:
    """What cannot be written for lack of room, if that is what went wrong."""
    if isinstance(error, OSError) and is_no_room(error):
        return f"{error.filename} cannot be written"
    if isinstance(error, StorageFailed) and os.strerror(errno.ENOSPC) in str(error):
        return str(error)
    return None


class Store:
    """One data directory: its files, its sync threads, its room, and whether it can be used."""

    flusher: Flusher
    internal_flusher: Flusher

    def __init__(
        self,
        data: DataDirectory,
        reserve: Reserve,
        executor: Executor,
        *,
        takes_partitions: bool = True,
    ) -> None:
        self.data = data
        self.reserve = reserve
        self.takes_partitions = takes_partitions
        self.directory_id = b""
        self.was_clean = True
        self.clean_epoch: int | None = None
        self.failure: OSError | None = None
        self.total_bytes = self.usable_bytes = -1
        # Held while a checkpoint is written: two at once would write the same scratch file.
        self.saving = asyncio.Lock()
        self._looking_up = asyncio.Semaphore(LOOK_UPS_PER_STORE)
        self._executor = executor

    @property
    def path(self) -> str:
        return self.data.path

    @property
    def is_online(self) -> bool:
        return self.failure is None

    @property
    def flushers(self) -> tuple[Flusher, Flusher]:
        return self.flusher, self.internal_flusher

    def run(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Blocking work on this directory, in its own few threads."""
        return asyncio.ensure_future(self._executor.run(work, *arguments))

    async def look_up(self, work: Callable[..., T], *arguments: Any) -> T:
        """As `run`, for what may wait long for its turn: some threads stay free for reads."""
        async with self._looking_up:
            return await self.run(work, *arguments)

    def measure(self, disk: Disk) -> None:
        """Blocking: how much room there is. What was given up of the reserve is taken back."""
        was_full = self.is_full
        self.reserve.take_back()
        self.total_bytes, self.usable_bytes = disk.room_bytes(self.path)
        if was_full and not self.is_full:
            logger.info("%s has room again", self.path)

    @property
    def is_full(self) -> bool:
        """Whether next to nothing can be written there, or not even the reserve."""
        return self.reserve.is_short or 0 <= self.usable_bytes < FULL_BYTES

    def make_room(self, disk: Disk) -> None:
        """Blocking, before a start writes anything: on a full disk the reserve is for that."""
        wanted_bytes = self.reserve.look()
        if disk.room_bytes(self.path)[1] < wanted_bytes:
            self.reserve.give_all()

    def with_reserve(self, work: Callable[..., T], *arguments: Any) -> T:
        """Blocking. Work that is done on a full disk as well, in the room that is kept for it."""
        while True:
            try:
                done = work(*arguments)
            except OSError as error:
                if not (is_no_room(error) and self.reserve.give()):
                    raise
            else:
                self.reserve.take_back()
                return done

    def close(self) -> None:
        self._executor.close()
        with suppress(OSError):
            self.data.release()


class StoresOf(Protocol):
    """Where partitions lie."""

    def of(self, partition: Partition) -> Store: ...


class Placement:
    """Chooses directories for new partitions: the least full one, by what is promised of it.

    Kafka counts partitions and knows nothing of bytes. Free bytes alone would send a thousand
    partitions that are created at once into one directory, since none of them has any bytes yet.
    So the room of a directory is its free bytes, shared among the partitions there that are still
    empty and the new one: what already lies there is missing from the free bytes, what is still to
    come is promised. Of equals the one with fewer partitions is taken, then the first named.
    """

    def __init__(self, stores: Sequence[Store], partitions: Iterable[Partition]) -> None:
        self._stores = stores
        self._count: Counter[DataDirectory] = Counter()
        self._empty: Counter[DataDirectory] = Counter()
        if len(stores) > 1:
            for partition in partitions:
                self.add(partition.data, is_empty=not partition.size_bytes)

    def add(self, data: DataDirectory, *, is_empty: bool) -> None:
        self._count[data] += 1
        self._empty[data] += is_empty

    def choose(self) -> Store:
        """Where the next one goes; it is counted from here on."""
        chosen = max(self._stores, key=self._room)
        self.add(chosen.data, is_empty=True)
        return chosen

    def _room(self, store: Store) -> tuple[float, int]:
        data = store.data
        return store.usable_bytes / (1 + self._empty[data]), -self._count[data]


class Stores:
    """All directories that the settings name, usable or not."""

    def __init__(
        self, disk: Disk, stores: Sequence[Store], nowhere: Store, metadata: Store, cluster_id: str
    ) -> None:
        self._disk = disk
        self._all = tuple(stores)
        self._by_data = {store.data: store for store in stores}
        self.metadata = metadata
        self.cluster_id = cluster_id
        # Where those partitions are whose directory is not among ours.
        self.nowhere = nowhere
        self.nowhere.failure = OSError(errno.ENODEV, "its data directory is not among log.dirs")

    def give_flushers(self, new_flusher: Callable[[Store, str], Flusher]) -> None:
        """Two for each: a stuck sync of data does not stop groups and metadata beside it."""
        for store in self._all:
            store.flusher = new_flusher(store, "data")
            store.internal_flusher = new_flusher(store, "internal")
            store.flusher.neighbour = store.internal_flusher
            store.internal_flusher.neighbour = store.flusher
        self.nowhere.flusher = self.metadata.flusher
        self.nowhere.internal_flusher = self.metadata.internal_flusher

    def __iter__(self) -> Iterator[Store]:
        return iter(self._all)

    def online(self) -> list[Store]:
        return [store for store in self._all if store.is_online]

    def of(self, partition: Partition) -> Store:
        return self._by_data.get(partition.data, self.nowhere)

    def with_id(self, directory_id: bytes) -> Store | None:
        for store in self._all:
            if store.directory_id == directory_id:
                return store
        return None

    @property
    def was_clean(self) -> bool:
        return all(store.was_clean for store in self._all)

    @property
    def clean_epoch(self) -> int | None:
        """The broker epoch that has left all directories clean; None where that is not sure."""
        epochs = {store.clean_epoch for store in self._all}
        return epochs.pop() if len(epochs) == 1 else None

    @property
    def has_offline(self) -> bool:
        return any(not store.is_online for store in self._all)

    def is_slow(self, path: str) -> bool:
        """Whether this file is on a disk that lets others wait just now."""
        return any(
            path.startswith(store.path + "/") and any(each.is_slow for each in store.flushers)
            for store in self._all
        )

    def measure(self) -> None:
        """Blocking, when a start has written what it had to; says which directories are full."""
        for store in self.online():
            store.measure(self._disk)
            if store.is_full:
                logger.error(
                    "%s is full: reads are served, writes refused. Delete records or topics, or "
                    "make room on that disk.",
                    store.path,
                )

    def placement(self, partitions: Iterable[Partition]) -> Placement:
        return Placement([s for s in self.online() if s.takes_partitions], partitions)

    def close(self) -> None:
        for store in self._all:
            store.close()


# ------------------------------------------------------------------------------------ starting


def open_stores(disk: Disk, config: BrokerConfig, random: Random, threads: Threads) -> Stores:
    """Blocking: holds every directory, checks whose it is, and makes new ones ours."""
    new_store = partial(_store, disk, random, threads)
    stores = _named(config, new_store)
    try:
        identities = _hold_all(stores)
        cluster_id = _check_owner(config, identities)
        metadata = _metadata_store(disk, config, stores, identities)
        if cluster_id is None:
            _check_alone(config)
            cluster_id = encode_uuid(random.bytes(16))
        for store, identity in identities.items():
            try:
                store.make_room(disk)
                _make_ours(store, identity, cluster_id, config.node_id, random)
                store.total_bytes, store.usable_bytes = disk.room_bytes(store.path)
            except OSError as error:
                _leave_out(store, error)
        _check_usable(metadata)
        nowhere = new_store("/nowhere", takes_partitions=False)
        return Stores(disk, stores, nowhere, metadata, cluster_id)
    except BaseException:
        for store in stores:
            store.close()
        raise


def _store(
    disk: Disk, random: Random, threads: Threads, path: str, *, takes_partitions: bool = True
) -> Store:
    reserve = Reserve(disk, path, random)
    name = os.path.basename(path) or "data"
    executor = threads.executor(f"io-{name}", THREADS_PER_STORE)
    return Store(DataDirectory(disk, path), reserve, executor, takes_partitions=takes_partitions)


def _named(config: BrokerConfig, new_store: Callable[..., Store]) -> list[Store]:
    """The directories of log.dirs, and that of metadata.log.dir where it is another one."""
    by_place: dict[str, Store] = {}
    for path in config.log_dirs:
        place = os.path.realpath(path)
        if place in by_place:
            raise CannotStart(f"log.dirs names {path} twice, as {by_place[place].path} as well.")
        by_place[place] = new_store(os.path.abspath(path))
    if config.metadata_log_dir is not None:
        place = os.path.realpath(config.metadata_log_dir)
        if place not in by_place:
            path = os.path.abspath(config.metadata_log_dir)
            by_place[place] = new_store(path, takes_partitions=False)
    return list(by_place.values())


def _hold_all(stores: Sequence[Store]) -> dict[Store, Identity | None]:
    """Who each usable directory belongs to."""
    identities: dict[Store, Identity | None] = {}
    for store in stores:
        try:
            store.data.hold()
            identities[store] = store.data.read_identity()
        except OSError as error:
            _leave_out(store, error)
    if not any(store.takes_partitions for store in identities):
        reasons = "; ".join(f"{store.path}: {store.failure}" for store in stores)
        raise CannotStart(f"No data directory can be used: {reasons}.")
    return identities


def _leave_out(store: Store, error: OSError) -> None:
    store.failure = error
    store.was_clean = False
    logger.error("%s cannot be used, it is offline: %s", store.path, error)


def _check_alone(config: BrokerConfig) -> None:
    """A node alone makes up its cluster; several would each make up another."""
    if is_alone(config):
        return
    why = "controller.quorum.voters names several nodes"
    if len(config.voters()) < 2:
        why = "controller.quorum.bootstrap.servers names other controllers"
    if not config.is_controller:
        why = "process.roles is broker, so others have begun it"
    raise CannotStart(
        f"{config.log_dirs[0]} belongs to no cluster yet, and {why}: "
        "`ottla storage format --cluster-id ID --node-id "
        f"{config.node_id} --data-dir {config.log_dirs[0]}` first, with the same ID on all "
        "(`ottla storage random-id` makes one)."
    )


def _check_owner(config: BrokerConfig, identities: dict[Store, Identity | None]) -> str | None:
    """All directories belong to this node of one cluster, or to nobody yet."""
    first: tuple[str, Identity] | None = None
    ids: dict[bytes, str] = {}
    for store, identity in identities.items():
        if identity is None:
            continue
        if identity.node_id != config.node_id:
            raise CannotStart(
                f"{store.path} belongs to node {identity.node_id}, not to node {config.node_id}: "
                f"start with --node-id {identity.node_id}, or choose another data directory."
            )
        first = first or (store.path, identity)
        if identity.cluster_id != first[1].cluster_id:
            raise CannotStart(
                f"{store.path} belongs to the cluster {identity.cluster_id}, {first[0]} to "
                f"{first[1].cluster_id}: take one of them out of log.dirs."
            )
        other = ids.setdefault(identity.directory_id, store.path)
        if identity.directory_id and other != store.path:
            raise CannotStart(
                f"{store.path} and {other} have the same directory.id in meta.properties: one is "
                "a copy of the other, take it out of log.dirs."
            )
    return None if first is None else first[1].cluster_id


def _metadata_store(
    disk: Disk,
    config: BrokerConfig,
    stores: Sequence[Store],
    identities: dict[Store, Identity | None],
) -> Store:
    """Where the metadata log lies; in new directories metadata.log.dir, or the first.

    Beginning a new metadata log beside partitions would make all of them strays.
    """
    wanted = stores[0]
    if config.metadata_log_dir is not None:
        path = os.path.abspath(config.metadata_log_dir)
        wanted = next((store for store in stores if store.path == path), stores[0])
    holding = [s for s in identities if disk.exists(s.data.partition_path(METADATA_PARTITION))]
    if len(holding) > 1:
        raise CannotStart(
            f"The metadata log is in {holding[0].path} and in {holding[1].path}: "
            "take the directory with the older one out of log.dirs."
        )
    if holding:
        if config.metadata_log_dir is not None and holding[0] is not wanted:
            raise CannotStart(
                f"The metadata log is in {holding[0].path}, not in {wanted.path}: "
                f"start with metadata.log.dir={holding[0].path}."
            )
        return holding[0]
    _check_usable(wanted)
    for store in identities:
        if store.data.partitions():
            raise CannotStart(
                f"{store.path} holds partitions, but no data directory holds the metadata log that "
                "they belong to: is a disk not mounted, or missing in log.dirs or metadata.log.dir?"
            )
    return wanted


def _check_usable(metadata: Store) -> None:
    if not metadata.is_online:
        raise CannotStart(
            f"{metadata.path}, where the metadata log belongs, cannot be used: {metadata.failure}."
        )


def _make_ours(
    store: Store, identity: Identity | None, cluster_id: str, node_id: int, random: Random
) -> None:
    is_new = identity is None
    if identity is None or not identity.directory_id:
        directory_id = random.bytes(16)
        while is_reserved(directory_id):
            directory_id = random.bytes(16)
        identity = Identity(cluster_id, node_id, directory_id)
        store.data.write_identity(identity)
    store.directory_id = identity.directory_id
    store.clean_epoch = store.data.take_clean_marker()
    store.was_clean = is_new or store.clean_epoch is not None
