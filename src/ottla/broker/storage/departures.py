"""Directories of deleted partitions: renamed, which frees their names, and then removed.

All of it happens in threads, in each data directory one partition after the other, so that a topic
of many partitions holds up neither the loop nor the other threads. A partition of a new topic of
the same name is there at once; its first file waits until the name of its directory is free. A
crash in between leaves directories whose topic is gone, or has another id: the next start finds
them (`finder.py`). Strays go the same way, but are only renamed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ottla.log.directory import DataDirectory
from ottla.ports import Disk, Executor, Random
from ottla.types import TopicPartition

logger = logging.getLogger(__name__)

RENAMED_AT_ONCE: Final = 64
RETRY_PAUSE_S: Final = 5.0


class Departure(NamedTuple):
    """A partition's directory that is to go; if it was in use, with what closes its files."""

    data: DataDirectory
    name: TopicPartition
    close_files: Callable[[], None] | None
    unique: bytes
    is_kept: bool

    @property
    def path(self) -> str:
        return self.data.partition_path(self.name)


class Departures:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, executor: Executor, disk: Disk, random: Random
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._disk = disk
        self._random = random
        self._taken: dict[str, list[Callable[[], None]]] = {}
        self._lanes: dict[DataDirectory, _Lane] = {}

    def begin(
        self,
        leaving: Iterable[tuple[DataDirectory, TopicPartition, Callable[[], None] | None]],
        *,
        is_kept: bool = False,
    ) -> None:
        """Renames and removes the directories; their names are taken until they are renamed.

        Those to be kept are renamed otherwise, and stay.
        """
        lanes, uniques = dict[_Lane, None](), dict[str, bytes]()
        for data, name, close_files in leaving:
            # Each topic has its own: long names that begin alike are cut to the same length.
            unique = uniques.get(name.topic) or uniques.setdefault(
                name.topic, self._random.bytes(16)
            )
            departure = Departure(data, name, close_files, unique, is_kept)
            self._taken.setdefault(departure.path, [])
            lane = self._lane(data)
            lane.to_rename.append(departure)
            lanes[lane] = None
        for lane in lanes:
            lane.go_on()

    def expect(self, data: DataDirectory, name: TopicPartition) -> None:
        """A directory that is to leave soon: its name is taken from now on."""
        self._taken.setdefault(data.partition_path(name), [])

    def remove(self, data: DataDirectory, directories: Iterable[str]) -> None:
        """Removes what has been renamed already."""
        lane = self._lane(data)
        lane.to_remove.extend(directories)
        lane.go_on()

    def is_taken(self, path: str) -> bool:
        """Whether a deleted partition's directory still has this name."""
        return path in self._taken

    def when_free(self, path: str, tell: Callable[[], None]) -> None:
        self._taken[path].append(tell)

    async def close(self) -> None:
        """Frees the names; what is left to be removed is left to the next start."""
        work = [lane.close() for lane in self._lanes.values()]
        under_way = [task for task in work if task is not None]
        if under_way:
            await asyncio.wait(under_way)

    def _lane(self, data: DataDirectory) -> _Lane:
        lane = self._lanes.get(data)
        if lane is None:
            lane = self._lanes[data] = _Lane(
                self._loop, self._executor, self._disk, data, self._freed
            )
        return lane

    def _freed(self, path: str) -> None:
        for tell in self._taken.pop(path, ()):
            tell()


class _Lane:
    """The departures of one data directory: a disk that is stuck holds up no other."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        disk: Disk,
        data: DataDirectory,
        freed: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._disk = disk
        self._data = data
        self._freed = freed
        self.to_rename: deque[Departure] = deque()
        self.to_remove: deque[str] = deque()
        self._refused: list[Departure] = []
        self._work: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    def go_on(self) -> None:
        if self._work is None and (self.to_rename or self.to_remove):
            self._work = self._loop.create_task(self._work_off(), name="departures")
            self._work.add_done_callback(self._worked)

    def close(self) -> asyncio.Task[None] | None:
        """What is under way, if anything is."""
        self._is_closing = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        return self._work

    async def _work_off(self) -> None:
        while self.to_rename or (self.to_remove and not self._is_closing):
            if self.to_rename:
                count = min(RENAMED_AT_ONCE, len(self.to_rename))
                some = [self.to_rename.popleft() for _ in range(count)]
                self._renamed(some, await self._executor.run(self._rename, some))
            else:
                await self._executor.run(self._remove, self.to_remove.popleft())

    def _worked(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if not work.cancelled() and work.exception() is not None:
            logger.error("deleted partitions remain: %s", work.exception())
        elif not self._is_closing:
            self.go_on()

    def _rename(self, some: Sequence[Departure]) -> list[str | None]:
        """In a thread. What is to be removed of each, "" if nothing; None: the name is not free."""
        found = [self._rename_one(departure) for departure in some]
        try:
            self._disk.sync_directory(self._data.path)
        except OSError as error:
            logger.warning("%s cannot be synced: %s", self._data.path, error)
        return found

    def _rename_one(self, departure: Departure) -> str | None:
        if departure.close_files is not None:
            departure.close_files()
        try:
            if departure.is_kept:
                self._data.set_stray_aside(departure.name, departure.unique)
                return ""
            return self._data.doom_partition(departure.name, departure.unique)
        except FileNotFoundError:
            return ""
        except OSError as error:
            logger.error("%s cannot be renamed: %s", departure.path, error)
            return None

    def _renamed(self, some: Sequence[Departure], found: Sequence[str | None]) -> None:
        for departure, directory in zip(some, found, strict=True):
            if directory is None:
                self._refused.append(departure)
                continue
            if directory:
                self.to_remove.append(directory)
            self._freed(departure.path)
        if self._refused and self._retry_timer is None and not self._is_closing:
            self._retry_timer = self._loop.call_later(RETRY_PAUSE_S, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self.to_rename.extend(self._refused)
        self._refused = []
        self.go_on()

    def _remove(self, directory: str) -> None:
        try:
            self._disk.remove_tree(directory)
        except OSError as error:
            logger.warning("a deleted partition's files remain: %s", error)
