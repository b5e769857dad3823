"""The broker's log lines: text for people, JSON lines for machines, always to stderr."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from ottla.broker.repeats import Repeats

ROOT: Final = "ottla"
_FORMATS: Final = ("text", "json")


def configure(level: str, format: str, stream: TextIO | None = None) -> None:
    """Sets up logging once; a second call replaces the first."""
    if format not in _FORMATS:
        raise ValueError(f"log format {format!r} is none of {', '.join(_FORMATS)}")
    target = sys.stderr if stream is None else stream
    handler = MergingHandler(target)
    handler.setFormatter(JsonLines() if format == "json" else TextLines(short=target.isatty()))
    root = logging.getLogger()
    tell_repeats()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_level(level)


def set_level(name: str) -> None:
    """Changes at run time how much of the broker's own doings is logged."""
    logging.getLogger(ROOT).setLevel(name.upper())


def tell_repeats() -> None:
    """Writes what was only counted so far: the broker stops."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, MergingHandler):
            handler.tell_all()


class MergingHandler(logging.StreamHandler[TextIO]):
    """Writes lines, but of those that come again and again only a count, once in a while."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats()
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Under the handler's lock, as all that follows."""
        now_s = time.monotonic()
        for told in self._repeats.due(now_s):
            super().emit(told)
        if self._repeats.admit(record, now_s):
            super().emit(record)
        else:
            self._tell_later(now_s)

    def tell_all(self) -> None:
        with self._locked():
            for told in self._repeats.rest(time.monotonic()):
                super().emit(told)

    def close(self) -> None:
        self.tell_all()
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    def _tell_later(self, now_s: float) -> None:
        """Though nobody should log anything more."""
        due_s = self._repeats.due_s
        if self._timer is None and due_s is not None:
            self._timer = threading.Timer(max(0.0, due_s - now_s), self._tell_due)
            self._timer.daemon = True
            self._timer.start()

    def _tell_due(self) -> None:
        with self._locked():
            self._timer = None
            now_s = time.monotonic()
            for told in self._repeats.due(now_s):
                super().emit(told)
            self._tell_later(now_s)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


class TextLines(logging.Formatter):
    """`2025-01-31 12:00:00.123 info    broker.main: words`; on a terminal without the date."""

    def __init__(self, *, short: bool) -> None:
        super().__init__()
        self._clock = "%H:%M:%S" if short else "%Y-%m-%d %H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime(self._clock, time.localtime(record.created))
        where = record.name.removeprefix(f"{ROOT}.")
        line = (
            f"{clock}.{int(record.msecs):03d} {record.levelname.lower():<7} "
            f"{where}: {record.getMessage()}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One object per line: time (UTC), level, logger, message, and where there is one, error.

    A line that stands for several has their number as `repeated`.
    """

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if "repeated" in record.__dict__:
            line["repeated"] = record.__dict__["repeated"]
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
