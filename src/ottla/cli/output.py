"""Data goes to stdout, words to stderr; `--json` is one object per line."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from ottla.cli.failures import CommandFailed, ReaderGone, WrongUsage

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


def write(data: bytes) -> None:
    """Puts bytes out as they are; ReaderGone when nobody reads them any more."""
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise ReaderGone from None


def flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def drop() -> None:
    """Sends what is still buffered nowhere, so that the interpreter's last flush is silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_is_gone() -> bool:
    """Whether stdout is a pipe whose reader has left; known without writing to it."""
    if not hasattr(select, "poll"):
        return False
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poller.poll(0))


def say(words: str) -> None:
    """A message for the person, never data."""
    print(words, file=sys.stderr)


def complain(words: object) -> None:
    say(f"ottla: {words}")


def has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(", ", ": "))


def show(rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Rows as a table whose columns are their keys, or one JSON object per line."""
    if as_json:
        for row in rows:
            write(f"{json_line(row)}\n".encode())
    else:
        found = list(rows)
        if found:
            write(table(found, has_colours(sys.stdout)).encode())
    flush()


def table(rows: Sequence[Mapping[str, Any]], coloured: bool = False) -> str:
    """Columns as wide as they need be; numbers to the right."""
    names = list(rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    titles = [name.upper().replace("_", "-") for name in names]
    widths = [
        max(len(title), *(len(line[column]) for line in cells))
        for column, title in enumerate(titles)
    ]
    is_number = [
        all(isinstance(row.get(name), int | float | None) for row in rows) for name in names
    ]

    def line(texts: Sequence[str]) -> str:
        parts = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_number, strict=True)
        )
        return "  ".join(parts).rstrip()

    head = f"{BOLD}{line(titles)}{PLAIN}" if coloured else line(titles)
    return "\n".join([head, *(line(texts) for texts in cells), ""])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items()) or "-"
    return str(value)


def confirm(question: str, *, yes: bool) -> None:
    """Goes on only with `--yes` or a person's yes."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUsage(f"{question} Nobody is there to ask; add --yes to go on.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was done.")
