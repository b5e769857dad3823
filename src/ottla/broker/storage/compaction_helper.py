"""The broker's end of the compaction process: starts it, asks it, notices when it dies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

from ottla.broker.storage import compaction_pipe as pipe
from ottla.errors import OttlaError, StorageFailed
from ottla.log.compaction.job import CompactionJob
from ottla.log.compaction.output import CleanedSegment

# Its longest silence is the sync of a segment.
SILENCE_S_MAX: Final = 120.0
STOP_S_MAX: Final = 5.0


class HelperLost(OttlaError):
    """The compaction process has died, or says nothing any more."""


class CompactionFailed(StorageFailed):
    """The compaction process could not do it; `reason` begins with what kind of error it was."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class CompactionHelper:
    """One process, for one job at a time. `close` ends it, whatever it does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.cleaned_to = -1

    @classmethod
    async def start(cls) -> CompactionHelper:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "ottla.broker.storage.compaction_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise HelperLost(f"the compaction process cannot be started: {error}") from None
        return cls(process)

    @property
    def process_id(self) -> int:
        return self._process.pid

    async def compact(self, job: CompactionJob) -> AsyncGenerator[CleanedSegment, None]:
        """New segments as they are written; the next is begun when this one has been dealt with."""
        await self._ask(pipe.encode_job(job))
        while True:
            message = await self._answer()
            kind = message["kind"]
            if kind == pipe.CLEANED:
                yield pipe.decode_cleaned(message)
                await self._ask(pipe.encode(pipe.GO_ON))
            elif kind == pipe.DONE:
                self.cleaned_to = message["cleaned_to"]
                return
            elif kind == pipe.FAILED:
                raise CompactionFailed(message["error"], message["reason"])

    async def _ask(self, frame: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(frame)
            async with asyncio.timeout(SILENCE_S_MAX):
                await stdin.drain()
        except (OSError, TimeoutError) as error:
            raise HelperLost(f"the compaction process takes no more orders: {error}") from None

    async def _answer(self) -> pipe.Message:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                length = await stdout.readexactly(pipe.LENGTH.size)
                return pipe.decode(await stdout.readexactly(pipe.body_bytes(length)))
        except asyncio.IncompleteReadError:
            raise HelperLost("the compaction process has died") from None
        except TimeoutError:
            raise HelperLost(f"the compaction process is silent for {SILENCE_S_MAX} s") from None

    async def close(self) -> None:
        """Asks it to end, and makes it."""
        process = self._process
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        if process.stdin is not None:
            process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
