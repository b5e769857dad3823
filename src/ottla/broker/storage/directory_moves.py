"""Replicas that move from one data directory of this node to another (KIP-113).

A copy fills beside the live log, in a directory that a start knows by its name. When it lacks next
to nothing, writes wait for a moment: the rest is copied, everything is synced, and the copy gets
the partition's name. From there on it is the log, whatever becomes of the old directory, which is
removed; should a crash leave both, the copy is marked as the one that counts (`finder.py`). A start
that finds a copy under way begins it anew. The controller is told where the log lies, until it
knows.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.stores import is_no_room
from ottla.broker.threads import WAIT_S_MAX, wait_out
from ottla.errors import InvalidTopicName, OttlaError, StorageFailed
from ottla.log.copying import LogCopy
from ottla.log.directory import NAME_CHARS_MAX, NotPromoted, future_name
from ottla.types import INTERNAL_TOPICS, TopicId, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.storage.checkpoints import Checkpoints
    from ottla.broker.storage.departures import Departures
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.partitions import Partitions
    from ottla.broker.storage.retention import Shortener
    from ottla.broker.storage.stores import Store, Stores
    from ottla.ports import Disk, Random

logger = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 4 * 1024 * 1024
# So little may be left to copy when writes begin to wait for it.
REST_BYTES_MAX: Final = 256 * 1024
# So much stays free in the directory that a copy goes to.
SPARE_BYTES: Final = 64 * 1024 * 1024
# A partition waits no longer than this for disks that are slow; it goes on where it is.
QUIET_S_MAX: Final = 5.0
COMPLETE_S_MAX: Final = 5.0
RETRY_S: Final = 1.0
TELL_S: Final = 2.0
PREFERENCES_MAX: Final = 10_000


class Rate(Protocol):
    def room(self) -> int: ...

    def pause_s(self) -> float: ...

    def take(self, count: int) -> None: ...


class DirectoryMove:
    """One replica on its way."""

    def __init__(self, partition: Partition, target: Store, laid_out: asyncio.Future[str]) -> None:
        self.partition = partition
        self.target = target
        # The directory of the copy, once a start would find it.
        self.laid_out = laid_out
        self.copy: LogCopy | None = None
        self.is_cancelled = False
        # Whether somebody is at its files; `ended` is set when nobody will be any more.
        self.is_carried = False
        self.ended = asyncio.Event()
        self.trouble = ""

    @property
    def byte_count(self) -> int:
        return 0 if self.copy is None else self.copy.byte_count

    @property
    def lag(self) -> int:
        """How many offsets the copy lacks."""
        contents = self.partition.contents()
        start = self.partition.start_offset
        copied = start if self.copy is None else max(start, self.copy.end_offset(contents))
        return max(0, self.partition.end_offset - copied)


class DirectoryMoves:
    """`is_told` says whether the metadata knows in which directory a partition lies by now."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        random: Random,
        stores: Stores,
        partitions: Partitions,
        checkpoints: Checkpoints,
        shortener: Shortener,
        departures: Departures,
        rate: Rate,
        tell: Callable[[Iterable[Partition]], None],
        is_told: Callable[[Partition], bool],
        stall_s_max: float,
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._random = random
        self._stores = stores
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._shortener = shortener
        self._departures = departures
        self._rate = rate
        self._tell = tell
        self._is_told = is_told
        self._stall_s_max = stall_s_max
        self._moves: dict[Partition, DirectoryMove] = {}
        self._lanes: dict[Store, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[Any]] = set()
        self._untold: dict[Partition, None] = {}
        self._preferred: dict[TopicPartition, Store] = {}
        self._is_stopped = False
        self.arrivals = 0

    # --------------------------------------------------------------------------------- asking

    async def ask(self, partition: Partition, target: Store) -> None:
        """Returns when a start would know of the move. Where the partition lies already, it stays,
        and is on its way to nowhere else.
        """
        self._check(partition, target)
        while (move := self._moves.get(partition)) is not None and move.target is not target:
            await self._cancel(move)
        if partition.data is target.data:
            return
        self._check(partition, target)
        if move is None:
            unique, name = self._random.bytes(16), partition.name
            laid_out = target.run(target.data.lay_out_future, name, partition.topic_id, unique)
            move = self._begin(partition, target, laid_out)
        await asyncio.shield(move.laid_out)

    def _check(self, partition: Partition, target: Store) -> None:
        if len(future_name(partition.name, bytes(16)).encode()) > NAME_CHARS_MAX:
            raise InvalidTopicName(f"{partition.name}: the name is too long for a second directory")
        if not target.is_online or self._is_stopped:
            raise StorageFailed(f"{target.path} is offline")
        if partition.is_offline or partition.is_damaged:
            raise StorageFailed(f"{partition.name} is offline, or damaged")

    def prefer(self, name: TopicPartition, store: Store) -> None:
        """Should the partition come to this node, it is to lie there; unless that is forgotten."""
        self._preferred.pop(name, None)
        if len(self._preferred) >= PREFERENCES_MAX:
            del self._preferred[next(iter(self._preferred))]
        self._preferred[name] = store

    def take_preference(self, name: TopicPartition) -> Store | None:
        store = self._preferred.pop(name, None)
        return store if store is not None and store.is_online else None

    def into(self, store: Store) -> list[DirectoryMove]:
        """Those whose copies lie in this directory."""
        return [move for move in self._moves.values() if move.target is store]

    @property
    def under_way(self) -> int:
        return len(self._moves)

    def resume(self) -> None:
        """Blocking, at a start: what was on its way goes on, what nobody needs is removed."""
        for store in self._stores.online():
            for name, path in store.data.futures():
                topic_id = store.data.read_id_in(path)
                partition = (self._partitions.in_topic(name.topic) or {}).get(name.partition)
                if partition is not None and partition.is_offline:
                    continue  # The true one is out of sight: a later start decides.
                if self._is_to_go_on(partition, topic_id, store):
                    laid_out: asyncio.Future[str] = self._loop.create_future()
                    laid_out.set_result(path)
                    assert partition is not None
                    self._begin(partition, store, laid_out)
                else:
                    self._departures.remove(store.data, [path])

    def _is_to_go_on(
        self, partition: Partition | None, topic_id: bytes | None, store: Store
    ) -> bool:
        return (
            partition is not None
            and partition.topic_id == TopicId(topic_id or b"")
            and partition.data is not store.data
            and partition not in self._moves
            and store.takes_partitions
        )

    async def stop(self) -> None:
        """Returns when nobody is at the files; copies under way are left to the next start."""
        self._is_stopped = True
        works = [*self._lanes.values(), *self._others]
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works, timeout=WAIT_S_MAX)

    # -------------------------------------------------------------------------------- carrying

    def _begin(
        self, partition: Partition, target: Store, laid_out: asyncio.Future[str]
    ) -> DirectoryMove:
        move = self._moves[partition] = DirectoryMove(partition, target, laid_out)
        if target not in self._lanes:
            self._lanes[target] = self._loop.create_task(self._work(target))
        return move

    async def _work(self, target: Store) -> None:
        """One after the other, in each directory; one that cannot go on does not hold up others."""
        try:
            while moves := self.into(target):
                is_over = False
                for move in moves:
                    is_over |= await self._carry(move)
                if not is_over:
                    await asyncio.sleep(RETRY_S)
        finally:
            # Without a pause after the last look: who comes next begins another.
            del self._lanes[target]

    async def _carry(self, move: DirectoryMove) -> bool:
        """Whether it is over: it has arrived, or nobody wants it any more."""
        if move.ended.is_set():
            return True
        move.is_carried = True
        try:
            path = await asyncio.shield(move.laid_out)
            if move.copy is None:
                source = move.partition.data.partition_path(move.partition.name)
                move.copy = LogCopy(self._disk, source, path)
            if self._is_wanted(move) and await self._fill(move, move.copy):
                await wait_out(self._swap(move, path))
            if not self._is_wanted(move) and not move.ended.is_set():
                await self._clear_up(move, path)
        except Exception as error:
            await self._meet_trouble(move, error)
        finally:
            move.is_carried = False
        return move.ended.is_set()

    def _is_wanted(self, move: DirectoryMove) -> bool:
        is_gone = move.is_cancelled or move.partition.is_retired
        return not is_gone and move.target.is_online

    async def _fill(self, move: DirectoryMove, copy: LogCopy) -> bool:
        """Whether next to nothing is missing."""
        partition, target = move.partition, move.target
        await self._check_room(move, copy)
        while self._is_wanted(move) and not partition.is_fenced:
            contents = partition.contents()
            if copy.lacks_bytes(contents) <= REST_BYTES_MAX:
                return True
            room = self._rate.room()
            if room <= 0:
                await asyncio.sleep(self._rate.pause_s())
                continue
            step = target.run(copy.add, contents, min(room, STEP_BYTES_MAX))
            self._rate.take(await wait_out(step))
        return False

    async def _check_room(self, move: DirectoryMove, copy: LogCopy) -> None:
        """A copy may not be what fills a disk for all others there."""
        await wait_out(move.target.run(move.target.measure, self._disk))
        wanted = copy.lacks_bytes(move.partition.contents()) + SPARE_BYTES
        if 0 <= move.target.usable_bytes < wanted:
            raise OSError(errno.ENOSPC, f"{wanted} bytes are needed", move.target.path)

    async def _meet_trouble(self, move: DirectoryMove, error: Exception) -> None:
        """It is tried again; a copy that finds no room gives back what it has taken."""
        partition = move.partition
        if not isinstance(error, OSError | OttlaError):
            logger.exception("%s cannot be moved", partition.name)
        elif str(error) != move.trouble and not isinstance(error, FileNotFoundError):
            move.trouble = str(error)
            logger.warning("%s stays where it is for now: %s", partition.name, error)
        if move.laid_out.done() and move.laid_out.exception() is not None:
            self._forget(move)
        elif isinstance(error, OSError) and is_no_room(error) and move.copy is not None:
            with suppress(OSError):
                await wait_out(move.target.run(move.copy.clear))

    # ------------------------------------------------------------------------------- swapping

    async def _swap(self, move: DirectoryMove, path: str) -> bool:
        """Whether the copy is the log by now."""
        partition, target, name = move.partition, move.target, move.partition.name
        source = self._stores.of(partition)
        old_path = partition.data.partition_path(name)
        if any(map(self._departures.is_taken, (old_path, target.data.partition_path(name)))):
            return False
        preparing: asyncio.Future[None] | None = None
        try:
            async with self._shortener.turn(source), partition.pausing(QUIET_S_MAX):
                preparing = asyncio.ensure_future(self._prepare(move))
                await asyncio.wait((preparing,), timeout=COMPLETE_S_MAX)
                if not preparing.done() or preparing.exception() is not None:
                    return False
                if not self._is_wanted(move) or partition.is_fenced:
                    return False
                if not await self._promote(move, path):
                    return False
                left_path = old_path if partition.has_directory else ""
                home = Home(target.data, name, partition.topic_id, is_durable=True)
                is_internal = name.topic in INTERNAL_TOPICS
                flusher = target.internal_flusher if is_internal else target.flusher
                close_files = partition.move_to(home, flusher)
        finally:
            if preparing is not None:
                # In a directory of its own it may go on for as long as its disk likes.
                await asyncio.wait((preparing,))
            self._checkpoints.arrived(partition)
            if preparing is not None:
                preparing.result()
        self._arrived(move, source, left_path, close_files)
        return True

    async def _prepare(self, move: DirectoryMove) -> None:
        """Blocks nobody but this partition's writers: the copy is complete and synced, and its new
        directory knows how to open it.
        """
        partition, target, copy = move.partition, move.target, move.copy
        assert copy is not None
        others = [
            store for store in self._stores if store.data not in (partition.data, target.data)
        ]
        is_only_other = not self._stores.has_offline and not any(
            self._departures.is_taken(store.data.partition_path(partition.name)) for store in others
        )
        contents = partition.contents()
        lacking = copy.lacks_bytes(contents)
        await target.run(partial(copy.complete, contents, is_only_other=is_only_other))
        self._rate.take(lacking)
        await self._checkpoints.save_arrival(partition, target)

    async def _promote(self, move: DirectoryMove, path: str) -> bool:
        """A disk that does not say what became of it leaves open where the log lies: then nobody
        writes to either, until a start finds the one that counts.
        """
        partition, target = move.partition, move.target
        promoting = target.run(target.data.promote, path, partition.name)
        promoting.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait((promoting,), timeout=self._stall_s_max)
        error = promoting.exception() if promoting.done() else TimeoutError("no answer")
        if error is None:
            return True
        if isinstance(error, NotPromoted):
            raise error
        logger.error("%s: nobody knows in which directory it lies: %s", partition.name, error)
        partition.go_offline(OSError(errno.EIO, f"its move has failed: {error}", target.path))
        self._forget(move)
        return False

    def _arrived(
        self, move: DirectoryMove, source: Store, old_path: str, close_files: Callable[[], None]
    ) -> None:
        partition = move.partition
        logger.info("%s has moved from %s to %s", partition.name, source.path, move.target.path)
        self._forget(move)
        self.arrivals += 1
        self._untold[partition] = None
        self._also(self._tell_all())
        if old_path:
            self._departures.begin([(source.data, partition.name, close_files)])
            self._departures.when_free(old_path, lambda: self._also(self._settle(move, source)))
        else:
            self._also(self._settle(move, source))

    async def _settle(self, move: DirectoryMove, source: Store) -> None:
        """The old directory is gone for good: the mark is of no use any more."""
        try:
            await wait_out(source.run(self._disk.sync_directory, source.path))
            await wait_out(move.target.run(move.target.data.forget_move, move.partition.name))
        except OSError as error:
            logger.info("%s keeps its mark: %s", move.partition.name, error)

    async def _tell_all(self) -> None:
        """Until the controller knows."""
        while self._untold:
            told = [one for one in self._untold if one.is_retired or self._is_told(one)]
            for partition in told:
                del self._untold[partition]
            if self._untold:
                self._tell(self._untold)
                await asyncio.sleep(TELL_S)

    def _also(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_stopped:
            work.close()
            return
        task = self._loop.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    # ------------------------------------------------------------------------------ giving up

    async def _cancel(self, move: DirectoryMove) -> None:
        """Returns when no start would go on with it, or it has arrived."""
        move.is_cancelled = True
        if not move.is_carried:
            # Another may have its turn for long; from here on nobody else takes it up.
            await self._carry(move)
        await move.ended.wait()

    def _forget(self, move: DirectoryMove) -> None:
        if self._moves.get(move.partition) is move:
            del self._moves[move.partition]
        move.ended.set()

    async def _clear_up(self, move: DirectoryMove, path: str) -> None:
        """Nobody wants it any more; of a directory that is offline nothing is asked."""
        if move.target.is_online:
            doomed = await wait_out(move.target.run(move.target.data.doom_future, path))
            self._departures.remove(move.target.data, [doomed])
        self._forget(move)
