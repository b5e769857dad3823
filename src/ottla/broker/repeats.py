"""Log lines that come again and again: the first few are written, the others counted.

A client that comes back at once whenever it is turned away would otherwise fill a disk. Lines are
equal when their words are. What a peer causes carries its address (`peer`) and what matters of its
words (`alike`), for a port is new each time; and as its words may differ each time too, all lines
of one kind and peer are counted together as well.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable, Iterator
from typing import Final

WINDOW_S: Final = 10.0
SAME_LINES_MAX: Final = 5
KIND_LINES_MAX: Final = 50
KINDS_MAX: Final = 1000


class _Kind:
    """Lines that count as one."""

    __slots__ = ("began_s", "held", "last", "written")

    def __init__(self, now_s: float) -> None:
        self.began_s = now_s
        self.written = 0
        self.held = 0
        self.last: logging.LogRecord | None = None

    def hold(self, record: logging.LogRecord) -> None:
        self.held += 1
        self.last = record

    def tell(self, now_s: float) -> logging.LogRecord:
        """The last of those that were held, for all of them; what comes now is held too."""
        assert self.last is not None
        told = copy.copy(self.last)
        seconds = max(1, round(now_s - self.began_s))
        told.msg = f"{self.last.getMessage()} ({self.held} more like this in {seconds} s)"
        told.args = None
        told.__dict__["repeated"] = self.held
        self.began_s, self.held, self.last = now_s, 0, None
        return told


class Repeats:
    """Knows no clock and writes nothing. Ordered by the beginning of each kind's window."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}
        self._evicted: list[logging.LogRecord] = []

    def __len__(self) -> int:
        return len(self._kinds)

    @property
    def due_s(self) -> float | None:
        """When something is to be told, if anything is held."""
        held = (kind.began_s for kind in self._kinds.values() if kind.held)
        first = next(held, None)
        return None if first is None else first + WINDOW_S

    def admit(self, record: logging.LogRecord, now_s: float) -> bool:
        """Whether this line is to be written; if not, it is counted."""
        peer = record.__dict__.get("peer")
        about: tuple[Hashable, ...] = (record.name, record.levelno)
        if peer is None:
            bounds = [((*about, record.getMessage()), SAME_LINES_MAX)]
        else:
            about = (*about, record.msg, peer)
            bounds = [
                ((*about, record.__dict__.get("alike")), SAME_LINES_MAX),
                (about, KIND_LINES_MAX),
            ]
        for key, lines_max in bounds:
            kind = self._kinds.get(key)
            if kind is not None and kind.written >= lines_max:
                kind.hold(record)
                return False
        for key, _ in bounds:
            self._kind(key, now_s).written += 1
        return True

    def due(self, now_s: float) -> Iterator[logging.LogRecord]:
        """What is to be told now of what was held."""
        evicted, self._evicted = self._evicted, []
        yield from evicted
        while self._kinds:
            key, kind = next(iter(self._kinds.items()))
            if now_s - kind.began_s < WINDOW_S:
                return
            del self._kinds[key]
            if kind.held:
                yield kind.tell(now_s)
                self._kinds[key] = kind

    def rest(self, now_s: float) -> Iterator[logging.LogRecord]:
        """All that is held, at the end."""
        yield from self.due(now_s)
        for kind in self._kinds.values():
            if kind.held:
                yield kind.tell(now_s)

    def _kind(self, key: Hashable, now_s: float) -> _Kind:
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= KINDS_MAX:
                oldest = self._kinds.pop(next(iter(self._kinds)))
                if oldest.held:
                    self._evicted.append(oldest.tell(now_s))
            kind = self._kinds[key] = _Kind(now_s)
        return kind
