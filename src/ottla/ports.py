"""Where time, randomness, threads, disk and network come in.

Everything that decides takes these as arguments, so that a test or the simulator can hand in its
own. Disk calls block; the broker chooses which of them are cheap enough for the event loop.

Timers are the loop's own, and whoever sets one may count on `loop.time()`. All other decisions by
time ask the `Clock`. Connections to others are the loop's, too (`loop.create_connection`); what a
broker listens on is taken from a `Network`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from ottla.types import Now
from ottla.wire.schema import Buffer

T = TypeVar("T")


class Clock(Protocol):
    def now(self) -> Now: ...

    def wall_ms(self) -> int:
        """`now().wall_ms`, for those who need nothing else."""

    def steady_s(self) -> float:
        """The steady clock in seconds and fractions, to measure how long something takes."""


class Random(Protocol):
    def bytes(self, count: int) -> bytes: ...

    def below(self, bound: int) -> int:
        """A whole number in [0, bound)."""


class Executor(Protocol):
    """Some threads for one purpose. Work is begun in the order in which it is given."""

    def run(self, work: Callable[..., T], *arguments: Any) -> Awaitable[T]:
        """Blocking work, begun in a thread at once; what it returns or raises is for the loop."""

    def begin(self, work: Callable[[], object], then: Callable[[], object]) -> None:
        """As `run`, for work that raises nothing: `then` is called on the loop, without a turn
        in between.
        """

    def close(self) -> None:
        """What has not begun never begins; what is under way is left to itself."""


class Threads(Protocol):
    """All work of a broker that does not run on its loop."""

    def executor(self, name: str, size: int) -> Executor:
        """Up to `size` threads of their own: whoever waits there keeps nobody else waiting."""

    def rest(self, seconds: float) -> None:
        """Blocking, in such a thread: the loop has the interpreter for itself."""


class Listener(Protocol):
    """A port that is taken, for as long as this is not closed."""

    @property
    def port(self) -> int: ...

    def claim(self) -> None:
        """Begins to listen, or raises OSError where another process does."""

    async def open(self) -> None:
        """After `claim`: connections are accepted from here on."""

    def close(self) -> None: ...


class Network(Protocol):
    async def bind(
        self,
        protocol_factory: Callable[[], Any],
        host: str,
        port: int,
        backlog: int,
        *,
        is_shared: bool = False,
    ) -> Listener:
        """Takes a port, any free one for 0, and lets nobody in yet; OSError says why it cannot.

        The factory makes one of asyncio's protocols for each connection. A port that is shared can
        be taken by several processes, and each connection comes to one of them.
        """

    async def is_own(self, host: str) -> bool:
        """Whether this is an address of the machine itself: what it says of its ports is true."""


class File(Protocol):
    """An open file. Positions are explicit; there is no cursor."""

    path: str

    def size(self) -> int: ...

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Writes all buffers one after the other, or raises OSError."""

    def read(self, count: int, position: int) -> Buffer:
        """Up to `count` bytes; fewer only at the end of the file. May wait for the disk."""

    def read_cached(self, count: int, position: int) -> Buffer | None:
        """As `read`, but None instead of waiting when a page is not in memory."""

    def let_pages_go(self, count: int, position: int) -> None:
        """Nobody needs these bytes in memory; those not written out yet stay."""

    def sync(self) -> None:
        """The file's data and size are on stable storage when this returns."""

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Opens for reading and writing; FileNotFoundError without `create`."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Creates it and its parents; existing is fine."""

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Removes a file; absence is fine."""

    def remove_tree(self, directory: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def sync_many(self, files: Sequence[File], directories: Sequence[str] = ()) -> bool:
        """Syncs all of them, files first, by whichever call is cheaper.

        True when that call synced everything else on their file system as well.
        """

    def sync_file_system(self, path: str) -> None:
        """Everything below `path`, a directory, is on stable storage when this returns."""

    def read_file(self, path: str) -> bytes: ...

    def write_file(self, path: str, data: bytes) -> None:
        """Replaces the whole file: after a crash it is the old or the new one, and synced."""

    def room_bytes(self, directory: str) -> tuple[int, int]:
        """(total, usable) bytes of the file system below `directory`."""

    def sizes(self, directory: str) -> Iterable[tuple[str, int]]:
        """Each file directly in `directory` with its size."""

    def modified_ms(self, path: str) -> int:
        """When the file was last written to, by the wall clock."""

    def lock(self, path: str) -> File:
        """Creates the file and holds it until closed; BlockingIOError when another process does."""
