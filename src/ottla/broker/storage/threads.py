"""Work in threads that nobody may lose sight of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

# A disk that is stuck for longer does not keep the broker from stopping.
WAIT_S_MAX: Final = 30.0


async def wait_out(work: Awaitable[T]) -> T:
    """Awaits work in a thread; a caller that is cancelled goes only when the thread is through.

    What the thread does to files is then over before anybody else takes them up.
    """
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working], timeout=WAIT_S_MAX)
        if working.done() and not working.cancelled():
            working.exception()
        raise
