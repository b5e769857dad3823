"""The lines of all nodes as one stream, each with its node's name before it."""

from __future__ import annotations

import queue
import re
import threading
from typing import Final, TextIO

from ottla.cli.output import BOLD, PLAIN, has_colours

# So many wait for a terminal that stands still; what comes after them is only counted.
LINES_MAX: Final = 10_000
LAST_LINES_S: Final = 2.0
DATE: Final = re.compile(r"^\d{4}-\d\d-\d\d ")
COLOURS: Final = tuple(f"\x1b[{code}m" for code in (36, 33, 35, 32, 34, 31))
CLUSTER: Final = "cluster"


class Stream:
    """Never holds up who writes to it: a thread waits for the terminal."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._is_coloured = has_colours(target)
        self._is_short = target.isatty()
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._left_out = 0
        self._thread = threading.Thread(target=self._write, name="stream", daemon=True)
        self._thread.start()

    def tell(self, words: str) -> None:
        """Of the cluster as a whole."""
        self._put(self._prefixed(CLUSTER, BOLD, words))

    def tell_of(self, number: int, line: str) -> None:
        if self._is_short:
            line = DATE.sub("", line)
        self._put(self._prefixed(f"node {number}", COLOURS[(number - 1) % len(COLOURS)], line))

    def close(self) -> None:
        """Waits for what is there, though not for ever."""
        try:
            self._lines.put(None, timeout=LAST_LINES_S)
        except queue.Full:
            return
        self._thread.join(LAST_LINES_S)

    def _prefixed(self, name: str, colour: str, line: str) -> str:
        prefix = f"{name:<7} |"
        return f"{colour}{prefix}{PLAIN} {line}" if self._is_coloured else f"{prefix} {line}"

    def _put(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._left_out:
                line += f"\n… {self._left_out} lines are left out"
                self._left_out = 0
            try:
                print(line, file=self._target, flush=True)
            except (OSError, ValueError):
                # Nobody reads any more. The nodes go on.
                continue
