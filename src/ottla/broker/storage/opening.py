"""Where batches are opened: in threads, beside the loop, and never many at once.

A search through records is Python and holds the interpreter's lock while it runs, so it is done in
steps of a fraction of a millisecond with a pause after each, in which the loop has the lock for
itself; and only one search runs at a time, of a produce or of a look-up by time, so that the loop
never has two rivals. Codecs let go of the lock; they are bounded for the sake of memory and cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from ottla.errors import CorruptBatch, InvalidRecord, OttlaError, TooLargeToOpen
from ottla.ports import Threads
from ottla.wire.records import BatchHeader, check_produced
from ottla.wire.scanning import Steps, keyless_records
from ottla.wire.schema import Buffer

T = TypeVar("T")

CODEC_THREADS: Final = 2
# Long enough for the loop to wake up and take the lock; the system makes some 160 µs of it.
PAUSE_S: Final = 0.0001


class Opened(NamedTuple):
    """What came of a look into a batch: why it is refused, if it is."""

    refusal: OttlaError | None


def check_keys(topic: str, batch: Buffer, header: BatchHeader) -> Steps[None]:
    """Refuses a batch for a compacted topic if a message in it has no key, and says which."""
    try:
        keyless = yield from keyless_records(batch, header)
    except TooLargeToOpen:
        raise
    except CorruptBatch as error:
        raise InvalidRecord(f"the records of the batch cannot be read: {error}") from None
    if keyless.count:
        reason = f"{topic} is compacted: every message needs a key"
        raise InvalidRecord(
            f"{reason}, {keyless.count} of {header.count} have none",
            [(place, reason) for place in keyless.places],
        )


class Opening:
    def __init__(self, threads: Threads, pause: Callable[[], None] | None = None) -> None:
        self._pause = pause or partial(threads.rest, PAUSE_S)
        self._turn = threading.Lock()
        self._searches = threads.executor("search", 1)
        self._codecs = threads.executor("codec", CODEC_THREADS)

    async def check_keys(self, batches: Sequence[tuple[str, Buffer]]) -> list[Opened]:
        """Looks for keys in batches for compacted topics, one after the other in one thread."""
        return await self._searches.run(self._check_all, batches)

    async def compress(self, work: Callable[[Buffer], Buffer], records: Buffer) -> Buffer:
        """Runs a codec."""
        return await self._codecs.run(work, records)

    def go_through(self, steps: Steps[T]) -> T:
        """Blocking, in a thread: all steps of a search, with pauses."""
        with self._turn:
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    value: T = end.value
                    return value
                self._pause()

    def _check_all(self, batches: Sequence[tuple[str, Buffer]]) -> list[Opened]:
        return [Opened(self._refusal(topic, records)) for topic, records in batches]

    def _refusal(self, topic: str, records: Buffer) -> OttlaError | None:
        try:
            view = memoryview(records)
            self.go_through(check_keys(topic, view, check_produced(view)))
        except OttlaError as error:
            return error
        return None

    def close(self) -> None:
        self._searches.close()
        self._codecs.close()
