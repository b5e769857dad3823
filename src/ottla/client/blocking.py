"""A cluster for callers without an event loop: a thread with a loop, and the cluster in it.

`shared` keeps one per process and settings, so that the next task of a Spark worker finds open
connections. A process that was forked starts with none of its own: threads do not come along.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.failures import ClientFailed, NoAnswer
from ottla.client.settings import ClientSettings
from ottla.event_loop import new_event_loop

T = TypeVar("T")

SHARED_MAX: Final = 32
CLOSE_TIMEOUT_S: Final = 5.0


class Blocking:
    """Starts its thread with the first request."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None
        self._running = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_idle(self) -> bool:
        return self._running == 0

    def run(self, make: Callable[[Cluster], Awaitable[T]], timeout_s: float) -> T:
        """Calls `make` in the loop's thread and waits for what it awaits."""
        return wait_for(self.submit(make), timeout_s, ", ".join(self.settings.bootstrap))

    def submit(self, make: Callable[[Cluster], Awaitable[T]]) -> concurrent.futures.Future[T]:
        """The same without waiting; cancelling the future cancels the question."""
        if self._pid != os.getpid():
            raise ClientFailed("this client belongs to the process that made it, not to its fork")
        # Under the lock, so that no question comes after the order to stop.
        with self._lock:
            loop, cluster = self._started()

            async def call() -> T:
                return await make(cluster)

            future = asyncio.run_coroutine_threadsafe(call(), loop)
            self._running += 1
        future.add_done_callback(self._count_down)
        return future

    def close(self) -> None:
        """Closes connections, cancels what runs, ends the thread."""
        if self._pid != os.getpid():
            return
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            loop, thread = self._loop, self._thread
        if was_closed or loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT_S)

    def _count_down(self, _: object) -> None:
        with self._lock:
            self._running -= 1

    def _started(self) -> tuple[asyncio.AbstractEventLoop, Cluster]:
        """The loop and the cluster; the lock must be held."""
        if self._is_closed:
            raise ClientFailed("the client is closed")
        if self._loop is None or self._cluster is None:
            self._loop = new_event_loop()
            self._cluster = Cluster(self.settings)
            self._thread = threading.Thread(
                target=_serve, args=(self._loop, self._cluster), name="ottla-client", daemon=True
            )
            self._thread.start()
        return self._loop, self._cluster


def wait_for(future: concurrent.futures.Future[T], timeout_s: float, who: str = "the cluster") -> T:
    """The future's result; an interrupt or the timeout cancels it."""
    try:
        return future.result(timeout_s)
    except concurrent.futures.CancelledError:
        raise ClientFailed("the client was closed meanwhile") from None
    except TimeoutError:
        if future.done():
            raise
        future.cancel()
        raise NoAnswer(f"{who}: no answer in {timeout_s:g} s") from None
    except BaseException:
        future.cancel()
        raise


def shared(settings: ClientSettings) -> Blocking:
    """This process's client for these settings."""
    return _PROCESS.get(settings)


class _Process:
    """The clients of one process, at most SHARED_MAX of them; a fork begins with none."""

    def __init__(self) -> None:
        self._begin()
        # After a fork the parent's clients are kept and never touched: to let go of them would
        # speak on sockets that the parent still uses.
        self._parents: list[dict[ClientSettings, Blocking]] = []

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[ClientSettings, Blocking] = {}

    def get(self, settings: ClientSettings) -> Blocking:
        with self._lock:
            client = self._clients.pop(settings, None)
            if client is None or client.is_closed:
                self._make_room()
                client = Blocking(settings)
            self._clients[settings] = client
            return client

    def _make_room(self) -> None:
        if len(self._clients) < SHARED_MAX:
            return
        for settings, client in self._clients.items():
            if client.is_idle:
                client.close()
                del self._clients[settings]
                return
        raise ClientFailed(f"{SHARED_MAX} clients with different settings are in use already")

    def begin_after_fork(self) -> None:
        self._parents.append(self._clients)
        self._begin()

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()


_PROCESS: Final = _Process()
if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_PROCESS.begin_after_fork)
atexit.register(_PROCESS.close)


def _serve(loop: asyncio.AbstractEventLoop, cluster: Cluster) -> None:
    """The thread's life: until the loop is stopped, then everything is put away."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_put_away(cluster))
        loop.close()


async def _put_away(cluster: Cluster) -> None:
    await cluster.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
