"""A cleaned segment takes the place of those it was made from; a crash finds the one or the other.

    .log.cleaned → .log.swap                     from here on there is no way back
    the old files → .deleted, the new indexes get their names
    .log.swap → .log

After each line the directory is synced. Without the first of these syncs a crash could leave the
old files renamed and the new one still `.cleaned`, which the next start removes: all would be lost.
Without the second it could leave the new one as `.log` beside old ones that have come back, and
every record in both would be there twice. The third only spares the next start some work.

Only the log is announced, not its indexes: they are built again from it, so a crash may take them.

Renames and the change in memory are steps without an await, so that nobody who deletes, closes or
reopens the log comes in between; syncs are for a thread. An open file stays what it is under any
name: who reads an old segment has its file open, or opens it as `.deleted`, and so never meets new
bytes at an old position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ottla.errors import OttlaError
from ottla.log.compaction.output import CleanedSegment
from ottla.log.handles import Handle, Handles
from ottla.log.segment import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    path_of,
)
from ottla.ports import Disk

if TYPE_CHECKING:
    from ottla.log.log import Log

_FILES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)


class SwapAbandoned(OttlaError):
    """The log has changed meanwhile; it is as if it had not been compacted."""


class Swap:
    """`begin`, `announce`, `replace`, `finish`, each followed by `sync`; in the end `close`.

    `begin` and `sync` block. `is_current` says whether the log is still the partition's own.
    """

    def __init__(
        self,
        log: Log,
        handles: Handles,
        cleaned: CleanedSegment,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        self._log = log
        self._handles = handles
        self._disk: Disk = handles.disk
        self._is_current = is_current
        self._old = _neighbours(log, cleaned.bases)
        base_offset = cleaned.bases[0]
        self._path = path_of(log.directory, base_offset, LOG)
        self._new = Segment(log.directory, base_offset, cleaned.size, self._old[-1].created_ms)
        self._new.is_created = True
        self._new.aborted_bytes = cleaned.aborted_bytes
        self._pinned: list[Handle] = []
        self._is_announced = self._is_replaced = self._is_finished = False

    @property
    def freed_bytes(self) -> int:
        return sum(segment.size for segment in self._old) - self._new.size

    def run(self) -> list[str]:
        """Blocking, all at once: for those who have the log to themselves."""
        try:
            self.begin()
            self.announce()
            self.sync()
            aside = self.replace()
            self.sync()
            self.finish()
            self.sync()
        finally:
            self.close()
        return aside

    def begin(self) -> None:
        """The old files are open from here on, and so is the new one.

        A thread that opened one while `replace` renames them would meet the new indexes instead.
        """
        self._check()
        for segment in self._old:
            if segment.is_created and segment.size:
                for handle in _handles_of(segment):
                    self._handles.acquire(handle)
                    self._pinned.append(handle)
        file = self._disk.open(self._path + CLEANED)
        if file.size() != self._new.size:
            file.close()
            raise SwapAbandoned(f"{self._path}{CLEANED} is not what was told of it")
        self._handles.adopt(self._new.handle, file)
        self._pinned.append(self._new.handle)

    def announce(self) -> None:
        self._check()
        self._disk.rename(self._path + CLEANED, self._path + SWAP)
        self._is_announced = True

    def replace(self) -> list[str]:
        """Returns the paths of what is to be removed when nobody can be reading it any more."""
        self._check()
        done: list[tuple[str, str]] = []
        try:
            for source, target in self._renames():
                with suppress(FileNotFoundError):
                    self._disk.rename(source, target)
                    done.append((source, target))
        except OSError:
            self._take_back(done)
            raise
        for segment in self._old:
            for handle in segment.handles():
                handle.path += DELETED
        self._log.replace_segments(self._old, self._new)
        self._is_replaced = True
        return [target for _, target in done if target.endswith(DELETED)]

    def _renames(self) -> Iterator[tuple[str, str]]:
        for segment in self._old:
            # The snapshot of the first one's base is that of the new one.
            suffixes = _FILES if segment is self._old[0] else (*_FILES, SNAPSHOT)
            for suffix in suffixes:
                path = path_of(self._log.directory, segment.base_offset, suffix)
                yield path, path + DELETED
        for suffix in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
            path = self._new.path(suffix)
            yield path + CLEANED, path

    def _take_back(self, done: list[tuple[str, str]]) -> None:
        try:
            for source, target in reversed(done):
                self._disk.rename(target, source)
        except OSError:
            # Neither forth nor back: opening the log anew is what completes it.
            self._log.fenced = True
            self._is_announced = False

    def finish(self) -> None:
        if self._log.fenced:
            raise SwapAbandoned(f"{self._log.directory} is fenced: opening it anew completes it")
        if any(segment is self._new for segment in self._log.segments):
            self._disk.rename(self._path + SWAP, self._path)
        elif self._is_current():
            # Retention was quicker, and found nothing of this name.
            self._disk.remove(self._path + SWAP)
        self._is_finished = True

    def sync(self) -> None:
        self._disk.sync_directory(self._log.directory)

    def close(self) -> None:
        """Whatever has become of it: nothing is held open, and no half of it is left.

        Where the disk has refused the last step, the log is fenced: to open it anew completes it.
        """
        for handle in self._pinned:
            self._handles.release(handle)
        self._pinned = []
        if self._is_replaced:
            for segment in self._old:
                for handle in segment.handles():
                    self._handles.drop(handle)
            if not self._is_finished:
                self._log.fenced = True
            return
        self._handles.drop(self._new.handle)
        # A log that is fenced may be being opened anew just now: then the swap is completed there.
        if self._is_announced and self._is_current() and not self._log.fenced:
            self._disk.remove(self._path + SWAP)

    def _check(self) -> None:
        log = self._log
        if log.fenced or not self._is_current():
            raise SwapAbandoned(f"{log.directory} is not in use any more")
        bases = tuple(segment.base_offset for segment in self._old)
        current = _neighbours(log, bases)
        if any(one is not other for one, other in zip(current, self._old, strict=True)):
            raise SwapAbandoned(f"{log.directory} has other segments now")


def _handles_of(segment: Segment) -> Iterator[Handle]:
    yield from (segment.handle, segment.offset_handle, segment.time_handle)
    if segment.aborted_bytes:
        yield segment.aborted_handle


def _neighbours(log: Log, bases: Sequence[int]) -> list[Segment]:
    segments = log.segments
    found = [at for at, segment in enumerate(segments[:-1]) if segment.base_offset == bases[0]]
    if found:
        old = list(segments[found[0] : min(found[0] + len(bases), len(segments) - 1)])
        if [segment.base_offset for segment in old] == list(bases):
            return old
    raise SwapAbandoned(f"{log.directory} has no longer all of the segments {bases}")


def remove_cleaned(disk: Disk, directory: str) -> None:
    """Blocking: what a compaction has written that did not come to its end."""
    for name in disk.list(directory):
        if name.endswith(CLEANED):
            disk.remove(f"{directory}/{name}")
