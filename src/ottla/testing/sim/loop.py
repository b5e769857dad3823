"""The event loop of one process: asyncio's rules, in turns that take virtual time.

Within a process callbacks run in the order in which they were asked for, as asyncio promises.
Chance decides how long a turn takes, and so how the turns of several processes interleave.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from heapq import heapify, heappop, heappush
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.testing.sim.clock import MachineClock
from ottla.testing.sim.scheduler import Scheduler

if TYPE_CHECKING:
    from ottla.testing.sim.network import Host

T = TypeVar("T")

# A turn costs so much, and so much more for each callback, give or take a half.
TURN_S: Final = 0.000_02
CALLBACK_S: Final = 0.000_005
# Clocks that run at different rates agree only so far.
RESOLUTION_S: Final = 0.000_001
CANCELLED_TIMERS_MAX: Final = 100

ExceptionHandler = Callable[[dict[str, Any]], None]


class _Handle(asyncio.Handle):
    """asyncio's, made without asking the loop whether it debugs."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: ProcessLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class ProcessLoop(asyncio.AbstractEventLoop):
    """Belongs to one process: `kill` drops all it would ever have done, `pause` holds it."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        clock: MachineClock,
        random: Random,
        on_exception: ExceptionHandler,
    ) -> None:
        self.name = name
        self.is_dead = False
        self.is_paused = False
        # The network as seen from this process; None for one that has none.
        self.host: Host | None = None
        self.clock = clock
        self._scheduler = scheduler
        self._draw = random.random
        self._on_exception = on_exception
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, Any]] = []
        self._timer_number = 0
        self._cancelled_timers = 0
        # A turn is on its way, or under way.
        self._is_awake = False
        self._alarm_s = inf
        self._busy_until_s = 0.0
        # What threads of a paused process would have done.
        self._held: list[Callable[[], object]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._tasks_kept = 64

    def __repr__(self) -> str:
        return f"<ProcessLoop {self.name}>"

    # ------------------------------------------------------------------------ life and death

    def kill(self) -> None:
        self.is_dead = True
        self._ready.clear()
        self._timers.clear()
        self._held.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        if self.is_paused and not self.is_dead:
            self.is_paused = False
            held, self._held = self._held, []
            for callback in held:
                callback()
            if not self._is_awake:
                self._wake()

    def clock_changed(self) -> None:
        """What the timers wait for comes at another moment now; an alarm too early does no harm."""
        self._arm()

    def in_process(self, seconds: float, callback: Callable[[], object]) -> None:
        """Calls it outside the loop, as a thread would: not in a dead process, nor a paused one."""
        self._scheduler.after(seconds, self._from_outside, callback)

    def _from_outside(self, callback: Callable[[], object]) -> None:
        if self.is_dead:
            return
        if self.is_paused:
            self._held.append(callback)
        else:
            callback()

    # ------------------------------------------------------------------------------- turns

    def _wake(self) -> None:
        self._is_awake = True
        now_s = self._scheduler.now_s
        self._scheduler.at(max(now_s, self._busy_until_s), self._turn)

    def _turn(self) -> None:
        if self.is_dead:
            return
        if self.is_paused:
            self._is_awake = False
            return
        ready = self._ready
        if self._timers:
            self._take_due()
        count = len(ready)
        _set_running_loop(self)
        try:
            for _ in range(count):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:
                    self.call_exception_handler(
                        {"message": f"Exception in callback {handle!r}", "exception": error}
                    )
                if self.is_dead:
                    return
        finally:
            _set_running_loop(None)
        now_s = self._scheduler.now_s
        self._busy_until_s = now_s + (TURN_S + CALLBACK_S * count) * (0.5 + self._draw())
        if ready:
            self._scheduler.at(self._busy_until_s, self._turn)
        else:
            self._is_awake = False
        if self._timers:
            self._arm()

    def _take_due(self) -> None:
        timers = self._timers
        due_s = self.clock.steady_s() + RESOLUTION_S
        while timers and timers[0][0] <= due_s:
            handle = heappop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._cancelled_timers -= 1
            else:
                self._ready.append(handle)

    def _arm(self) -> None:
        """Sees to it that something wakes this loop when its first timer is due."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)[2]._scheduled = False
            self._cancelled_timers -= 1
        if timers:
            when_s = self.clock.virtual_s(timers[0][0])
            if when_s < self._alarm_s:
                self._alarm_s = when_s
                self._scheduler.at(when_s, self._alarm, when_s)

    def _alarm(self, when_s: float) -> None:
        if when_s != self._alarm_s or self.is_dead:
            return
        self._alarm_s = inf
        if self._is_awake or self.is_paused:
            return
        timers = self._timers
        if timers and timers[0][0] <= self.clock.steady_s() + RESOLUTION_S:
            if self._scheduler.now_s >= self._busy_until_s:
                self._is_awake = True
                self._turn()
            else:
                self._wake()
        else:
            self._arm()

    # ---------------------------------------------------------------------------- callbacks

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
            if not self._is_awake:
                self._wake()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.clock.steady_s() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            self._timer_number += 1
            heappush(self._timers, (when, self._timer_number, handle))
            handle._scheduled = True  # type: ignore[attr-defined]
            if not self._is_awake:
                self._arm()
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        if handle._scheduled:
            self._cancelled_timers += 1
            count = self._cancelled_timers
            if count > CANCELLED_TIMERS_MAX and 2 * count > len(self._timers):
                self._timers = [timer for timer in self._timers if not timer[2]._cancelled]
                heapify(self._timers)
                self._cancelled_timers = 0

    def time(self) -> float:
        return self.clock.steady_s()

    # ---------------------------------------------------------------------- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > self._tasks_kept:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._tasks_kept = 64 + 2 * len(self.tasks)
        return task

    def spawn(
        self, work: Coroutine[Any, Any, T], then: Callable[[asyncio.Task[T]], object]
    ) -> None:
        """Begins it from outside; `then` is told on this loop when it is done."""

        def begin() -> None:
            self.create_task(work).add_done_callback(then)

        self.call_soon(begin)

    def bury(self) -> None:
        """Ends the coroutines of a dead process; nothing of what they do then comes to anything."""
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                # Whatever it says, nobody hears it.
                with suppress(BaseException):
                    coroutine.close()
        self.tasks.clear()

    # ---------------------------------------------------------------------------- exceptions

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._on_exception(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def set_exception_handler(self, handler: Any) -> None:
        """The world has its own."""

    def get_exception_handler(self) -> None:
        return None

    # ------------------------------------------------------------------------------ the rest

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Never."""

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def get_task_factory(self) -> None:
        return None

    async def shutdown_asyncgens(self) -> None:
        """None are kept."""

    async def shutdown_default_executor(self) -> None:
        """There is none."""

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if self.host is None or host is None or port is None or options.get("ssl") is not None:
            raise NotImplementedError("the simulated network has TCP between known hosts only")
        return await self.host.connect(self, protocol_factory, host, port)
