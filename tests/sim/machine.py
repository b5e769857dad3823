"""A machine whose power can be cut: the real broker, all of it, on a disk in memory."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from ottla.broker.main import Broker
from ottla.config import BrokerConfig
from ottla.errors import OttlaError
from ottla.ports import Disk
from ottla.testing.disks import FaultyDisk, MemoryDisk, PowerLoss
from sim.caller import Gone

# What befalls those who go on when there is no power: the broker's own start among them.
POWERLESS = (PowerLoss, Gone, OSError, OttlaError)
# The broker's chores come round in seconds; a life here is over in a fraction of one.
HASTE = {
    "ottla.broker.control.snapshots": {"PAUSE_S": 0.01, "PAUSE_AFTER_FAILURE_S": 0.02},
    "ottla.broker.storage.recovery_points": {"PAUSE_S": 0.01},
    "ottla.broker.storage.repairs": {"PROBE_PAUSE_S": 0.02},
    # In brokers of earlier days.
    "ottla.broker.storage.partitions": {"PROBE_PAUSE_S": 0.02},
    "ottla.broker.control.runtime": {"LOAD_PAUSE_S": 0.02},
    "ottla.broker.storage.departures": {"RETRY_PAUSE_S": 0.05},
    "ottla.broker.storage.directory_moves": {"RETRY_S": 0.01, "TELL_S": 0.02},
}


@contextmanager
def in_haste() -> Iterator[None]:
    """What a broker does every few seconds, it does every few milliseconds, and in silence."""
    # Disks in trouble make brokers talk; what matters here is what clients were told.
    logging.disable(logging.ERROR)
    before: list[tuple[Any, str, object]] = []
    for name, pauses in HASTE.items():
        module = _imported(name)
        for constant, value in pauses.items():
            if hasattr(module, constant):
                before.append((module, constant, getattr(module, constant)))
                setattr(module, constant, value)
    try:
        yield
    finally:
        for module, constant, value in before:
            setattr(module, constant, value)
        logging.disable(logging.NOTSET)


def _imported(name: str) -> ModuleType | None:
    """Brokers of earlier days (`scripts/mutants.py --at`) had fewer modules, all in one room."""
    package, _, rest = name.rpartition("broker.")
    for known in (name, f"{package}broker.{rest.rpartition('.')[2]}"):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(known)
    return None


@contextmanager
def threads_may_lose_power() -> Iterator[None]:
    """A thread of a machine that is off ends by PowerLoss, which is nobody's fault."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not PowerLoss:
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


class Machine:
    """One broker from its start to the cut of its power, in the loop that runs."""

    def __init__(self, disk: MemoryDisk, settings: Mapping[str, str], *, faulty: bool) -> None:
        self.disk = disk
        self.trouble = FaultyDisk(disk) if faulty else None
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._note)
        self.off = asyncio.Event()
        # What went wrong while there was power, and was told to nobody.
        self.unhandled: list[str] = []
        disk.on_power_loss = self._tell_off
        port: Disk = disk if self.trouble is None else self.trouble
        self.broker = Broker(BrokerConfig.parse(settings), port)

    def _tell_off(self) -> None:
        # A start that is cut short tidies up, which nobody does without power.
        self.broker._can_back_out = False
        with suppress(RuntimeError):  # The loop may be closed by now.
            self._loop.call_soon_threadsafe(self.off.set)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.disk.is_off and not isinstance(context.get("exception"), PowerLoss):
            self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def start(self) -> None:
        info = await self.broker.start()
        host, _, port = info.kafka.rpartition(":")
        self.address = host, int(port)

    async def run(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        """Returns when the work is done, or the power gone; what it found wrong is raised."""
        working = self._loop.create_task(work)
        off = self._loop.create_task(self.off.wait())
        done, _ = await asyncio.wait(
            (working, off), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        off.cancel()
        working.cancel()
        await asyncio.wait((working,))
        error = None if working.cancelled() else working.exception()
        if error is not None and not (self.disk.is_off and isinstance(error, POWERLESS)):
            raise error
        if not done:
            raise TimeoutError(f"nothing has come of it for {seconds} s")

    @property
    def metadata_epoch(self) -> int:
        """The epoch of the metadata log that this broker has won."""
        return self.broker._controller.partition.leader_epoch

    async def abandon(self) -> None:
        """Cuts the power if need be, and clears away what is left of the broker's process.

        The disk is not touched: whoever tries gets PowerLoss. The loop ends the rest.
        """
        self.disk.lose_power()
        if self.trouble is not None:
            self.trouble.heal()
        self._stop_timers()
        broker = self.broker
        # `scripts/mutants.py --at` runs brokers of earlier days, which had servers and no opening.
        for door in getattr(broker, "_doors", None) or getattr(broker, "_servers", ()):
            door.close()
        if hasattr(broker, "_services") and hasattr(broker._services, "opening"):
            broker._services.opening.close()
        shared = getattr(broker, "_connections", None) or getattr(broker, "_listener", None)
        if shared is not None:
            for connection in tuple(shared.connections):
                connection.drop("the power is off")
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await self._join_threads(for_good=not tasks)
        if tasks:
            await asyncio.wait(tasks)
            await self._join_threads(for_good=True)
        self._stop_timers()
        gc.unfreeze()

    async def _join_threads(self, *, for_good: bool) -> None:
        broker = self.broker
        if hasattr(broker, "_threads"):
            await asyncio.to_thread(broker._threads.join)
            return
        for store in getattr(broker, "_stores", ()):
            for flusher in getattr(store, "flushers", ()):
                flusher._jobs.put(None)
                flusher._writes.put(None)
                for thread in (flusher._syncer, flusher._writer):
                    if thread.ident is not None:
                        await asyncio.to_thread(thread.join)
            if for_good:
                await asyncio.to_thread(store.threads.shutdown)

    def _stop_timers(self) -> None:
        for timer in tuple(getattr(self._loop, "_scheduled", ())):
            timer.cancel()


def run_on(main: Any) -> Any:
    """Runs a coroutine in a loop of its own, and leaves nothing of it behind."""
    with asyncio.Runner() as runner:
        return runner.run(main)
