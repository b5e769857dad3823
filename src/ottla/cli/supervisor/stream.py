"""The lines of all nodes as one stream, each with its node's name before it, or in it."""

from __future__ import annotations

import json
import logging
import queue
import re
import threading
from typing import Final, Protocol, TextIO

from ottla.broker.logs import JsonLines
from ottla.cli.output import BOLD, PLAIN, has_colours

# So many wait for a terminal that stands still; what comes after them is only counted.
LINES_MAX: Final = 10_000
LAST_LINES_S: Final = 2.0
DATE: Final = re.compile(r"^\d{4}-\d\d-\d\d ")
COLOURS: Final = tuple(f"\x1b[{code}m" for code in (36, 33, 35, 32, 34, 31))


class Shape(Protocol):
    """How a line looks."""

    def of_all(self, words: str) -> str: ...

    def of_one(self, number: int, line: str) -> str: ...


class Prefixed:
    """For people: `node 2  | words`, in colours where there are any."""

    def __init__(self, target: TextIO, word: str = "node", whole: str = "cluster") -> None:
        self._word = word
        self._whole = whole
        self._width = max(len(whole), len(word) + 3)
        self._is_coloured = has_colours(target)
        self._is_short = target.isatty()

    def of_all(self, words: str) -> str:
        return self._prefixed(self._whole, BOLD, words)

    def of_one(self, number: int, line: str) -> str:
        if self._is_short:
            line = DATE.sub("", line)
        colour = COLOURS[(number - 1) % len(COLOURS)]
        return self._prefixed(f"{self._word} {number}", colour, line)

    def _prefixed(self, name: str, colour: str, line: str) -> str:
        prefix = f"{name:<{self._width}} |"
        return f"{colour}{prefix}{PLAIN} {line}" if self._is_coloured else f"{prefix} {line}"


class Objects:
    """For programs: each line one object of JSON, that of a node with its number in it."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._lines = JsonLines()

    def of_all(self, words: str) -> str:
        return self._made(words)

    def of_one(self, number: int, line: str) -> str:
        whole = line if line.startswith("{") else self._made(line)
        return f"{{{json.dumps(self._word)}: {number}, {whole[1:]}"

    def _made(self, words: str) -> str:
        record = logging.LogRecord(
            __name__, logging.INFO, __file__, 0, "%s", (words,), exc_info=None
        )
        return self._lines.format(record)


class Stream:
    """Never holds up who writes to it: a thread waits for the terminal."""

    def __init__(self, target: TextIO, shape: Shape | None = None) -> None:
        self._target = target
        self._shape = shape or Prefixed(target)
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._left_out = 0
        self._thread = threading.Thread(target=self._write, name="stream", daemon=True)
        self._thread.start()

    def tell(self, words: str) -> None:
        """Of all of them."""
        self._put(self._shape.of_all(words))

    def tell_of(self, number: int, line: str) -> None:
        self._put(self._shape.of_one(number, line))

    def close(self) -> None:
        """Waits for what is there, though not for ever."""
        try:
            self._lines.put(None, timeout=LAST_LINES_S)
        except queue.Full:
            return
        self._thread.join(LAST_LINES_S)

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
