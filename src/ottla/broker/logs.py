"""The broker's log lines: text for people, JSON lines for machines, always to stderr."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final, TextIO

ROOT: Final = "ottla"
_FORMATS: Final = ("text", "json")


def configure(level: str, format: str, stream: TextIO | None = None) -> None:
    """Sets up logging once; a second call replaces the first."""
    if format not in _FORMATS:
        raise ValueError(f"log format {format!r} is none of {', '.join(_FORMATS)}")
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonLines() if format == "json" else TextLines(short=target.isatty()))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_level(level)


def set_level(name: str) -> None:
    """Changes at run time how much of the broker's own doings is logged."""
    logging.getLogger(ROOT).setLevel(name.upper())


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
    """One object per line: time (UTC), level, logger, message, and error where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
