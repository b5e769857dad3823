"""The process that a broker has to itself: its loop, its memory, its signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Final

from ottla.broker import logs
from ottla.broker.main import Broker
from ottla.broker.ready import ReadyInfo
from ottla.broker.standstill import Standstill, standstill_s
from ottla.config import BrokerConfig
from ottla.errors import StorageFailed
from ottla.event_loop import new_event_loop
from ottla.ports import Disk

logger = logging.getLogger(__name__)

# SIGTERM is how a service is told to stop; after Ctrl-C the shell is to know of it.
EXIT_CODES: Final = {signal.SIGTERM: 0, signal.SIGINT: 130}
OPEN_FILES_WANTED: Final = 1_048_576
# So long a start may go on that is told to stop, so that it ends cleanly.
START_GRACE_S: Final = 5.0
# With the usual 5 ms a finished sync could wait that long for a busy loop.
THREAD_SWITCH_S: Final = 0.000_5
# What a request makes dies without the collector's help; Python's 700 would have it look for
# cycles every twenty requests.
GC_THRESHOLDS: Final = (20_000, 20, 20)
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
BUFFER_BYTES_KEPT: Final = 16 * 1024 * 1024
FREE_BYTES_KEPT: Final = 32 * 1024 * 1024


def run(
    config: BrokerConfig, on_ready: Callable[[ReadyInfo], None], disk: Disk | None = None
) -> int:
    """Runs a broker until SIGTERM or SIGINT; the exit code is for the shell.

    StorageFailed says why it could not go on: without any data directory there is no broker.
    """
    sys.setswitchinterval(THREAD_SWITCH_S)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(config, on_ready, disk))


async def _serve(
    config: BrokerConfig, on_ready: Callable[[ReadyInfo], None], disk: Disk | None
) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    codes: list[int] = []

    def told_to_stop(code: int) -> None:
        codes.append(code)
        stopping.set()

    for number, code in EXIT_CODES.items():
        loop.add_signal_handler(number, told_to_stop, code)
    _raise_open_files()
    broker = Broker(config, disk)
    told = loop.create_task(stopping.wait())
    starting = loop.create_task(broker.start())
    await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await asyncio.wait((starting,), timeout=START_GRACE_S)
    if not starting.done():
        # It waits for other nodes, and may for ever.
        starting.cancel()
        await asyncio.wait((starting,), timeout=START_GRACE_S)
        logger.info("stopped before it was ready")
        return codes[0]
    info = starting.result()
    _spare_the_collector()
    on_ready(info)
    loop.call_soon(_keep_freed_memory)
    standstill = Standstill(loop, standstill_s(config), broker.let_clients_go)
    standstill.start()
    await asyncio.wait((told, broker.given_up), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    standstill.close()
    logger.info("stopping")
    await broker.stop()
    logs.tell_repeats()
    if broker.has_stuck_disk:
        # Its threads would be waited for as long as the disk takes.
        logger.error("ended without waiting for a disk that does not answer")
        os._exit(1)
    if broker.given_up.done():
        raise StorageFailed(broker.given_up.result())
    logger.info("stopped")
    return codes[0]


def _spare_the_collector() -> None:
    """What is there after the start stays: the process is the broker's, and nobody else's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


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
