"""Producers that go on while things are killed, and remember what they have sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import Producer

from scenarios.polling import until

FLUSH_TIMEOUT_S = 120.0
PAUSE_S = 0.05


class Sent(NamedTuple):
    key: bytes
    value: bytes


class Feed:
    """Sends rows to a topic in a thread, a few at a time, as far as it is allowed to.

    Idempotent, with all acknowledgements: what is in `sent` at the end is in the topic, once.
    """

    def __init__(
        self, bootstrap: str, topic: str, rows: Callable[[int], Sent], *, per_turn: int = 20
    ) -> None:
        # A broker that was killed comes back; until then messages wait here.
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._topic = topic
        self._rows = rows
        self._per_turn = per_turn
        self._allowed = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send, name=f"feed of {topic}")
        self.sent: list[Sent] = []
        self._refused: list[str] = []

    def allow(self, total: int) -> None:
        """So many may be sent in all."""
        self._allowed = max(self._allowed, total)

    def until_idle(self) -> None:
        until(lambda: len(self.sent) >= self._allowed, f"the feed of {self._topic} stands still")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        if kind is None:
            assert left == 0, f"{left} messages to {self._topic} have not been acknowledged"
            assert not self._refused, self._refused[:3]

    def _send(self) -> None:
        while not self._is_over.is_set():
            for number in self._turn():
                row = self._rows(number)
                self._producer.produce(self._topic, row.value, row.key, on_delivery=self._delivered)
                self.sent.append(row)
            self._producer.poll(0)
            time.sleep(PAUSE_S)

    def _turn(self) -> Iterator[int]:
        first = len(self.sent)
        yield from range(first, min(first + self._per_turn, self._allowed))

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self._refused.append(str(error))
