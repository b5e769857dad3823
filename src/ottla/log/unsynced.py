"""Which files of a log have bytes that a crash could take back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.log.handles import Handle, Handles
from ottla.log.values import LogPosition
from ottla.ports import File

_NEVER = -1


@dataclass(frozen=True, slots=True)
class SyncTicket:
    """What must reach stable storage so that everything before `position` is safe.

    The files are synced first, then the directories.
    """

    files: list[File]
    directories: list[str]
    position: LogPosition
    generation: int
    giver: Unsynced

    def give_up(self) -> None:
        """Nobody waits for it any more: its files may be closed."""
        self.giver.give_up(self.generation)


class Unsynced:
    """Holds such files open until a ticket that covers them has come back.

    Each file remembers in which generation it was last written to; a ticket ends a generation.
    Every ticket covers all that no earlier one has brought back, so tickets may overlap. A thread
    that syncs a ticket's files finds them open, whatever becomes of the log meanwhile.
    """

    __slots__ = (
        "_directory",
        "_directory_written",
        "_generation",
        "_handles",
        "_under_way",
        "_written",
    )

    def __init__(self, handles: Handles, directory: str) -> None:
        self._handles = handles
        self._directory = directory
        self._written: dict[Handle, int] = {}
        self._directory_written = _NEVER
        self._generation = 0
        self._under_way: dict[int, list[Handle]] = {}

    @property
    def handles(self) -> Handles:
        return self._handles

    def to_write(self, handle: Handle) -> File:
        """The file, from now on unsynced."""
        file = handle.file if handle in self._written else None
        if file is None:
            file = self._handles.acquire(handle)
        self._written[handle] = self._generation
        return file

    def to_create(self, handle: Handle) -> File:
        """As `to_write`; its name is unsynced, too."""
        file = handle.file if handle in self._written else None
        if file is None:
            try:
                file = self._handles.acquire(handle, create=True)
            except FileNotFoundError:
                self._handles.disk.make_directory(self._directory)
                file = self._handles.acquire(handle, create=True)
        self._written[handle] = self._directory_written = self._generation
        return file

    def write_whole(self, contents: Iterable[tuple[Handle, bytes]]) -> None:
        """In place and not at once: for files that are rebuilt if they are found broken."""
        for handle, data in contents:
            file = self.to_create(handle)
            file.write([data], 0)
            if file.size() > len(data):
                file.truncate(len(data))

    def write_away(self, handle: Handle, data: bytes) -> None:
        """As `write_whole`, for a file that nobody reads before the next start."""
        try:
            self.write_whole([(handle, data)])
        finally:
            self._handles.drop(handle)

    def names_changed(self) -> None:
        """A name in the directory has changed or gone."""
        self._directory_written = self._generation

    def ticket(self, position: LogPosition) -> SyncTicket | None:
        if not self._written and self._directory_written == _NEVER:
            return None
        generation, handles = self._generation, list(self._written)
        files = [self._handles.acquire(handle) for handle in handles]
        directories = [] if self._directory_written == _NEVER else [self._directory]
        self._under_way[generation] = handles
        self._generation += 1
        return SyncTicket(files, directories, position, generation, self)

    def finish(self, ticket: SyncTicket) -> None:
        """The ticket is synced."""
        generation = ticket.generation
        self.give_up(generation)
        for handle in [h for h, written in self._written.items() if written <= generation]:
            del self._written[handle]
            self._handles.release(handle)
        if self._directory_written <= generation:
            self._directory_written = _NEVER

    def give_up(self, generation: int) -> None:
        """Nobody syncs this ticket any more."""
        for handle in self._under_way.pop(generation, ()):
            self._handles.release(handle)

    def give_up_all(self) -> None:
        for generation in list(self._under_way):
            self.give_up(generation)

    def sync(self, position: LogPosition) -> None:
        """Blocking."""
        ticket = self.ticket(position)
        if ticket is not None:
            try:
                self.sync_ticket(ticket)
            except OSError:
                self.give_up(ticket.generation)
                raise
            self.finish(ticket)

    def sync_ticket(self, ticket: SyncTicket) -> None:
        """Blocking: what the broker does for many tickets at once."""
        self._handles.disk.sync_many(ticket.files, ticket.directories)

    def let_go(self) -> None:
        """Closes the files, synced or not."""
        for handle in self._written:
            self._handles.release(handle)
            self._handles.drop(handle)
        self._written = {}
