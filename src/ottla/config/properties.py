"""Java's .properties files, as Kafka's own configuration is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(content: str) -> dict[str, str]:
    """Names and values; the last of equal names counts, as in Java."""
    return dict(_split(line) for line in _logical_lines(content))


def _logical_lines(content: str) -> Iterator[str]:
    """Lines without comments, each joined with those it continues on."""
    pending = ""
    for natural in content.splitlines():
        line = natural.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        pending += line
        if _ends_in_escape(pending):
            pending = pending[:-1]
            if pending:
                continue
        yield pending
        pending = ""
    if pending:
        yield pending


def _ends_in_escape(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=: \t\f":
        end += 2 if line[end] == "\\" else 1
    value = line[end:].lstrip(" \t\f")
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(" \t\f")
    return _unescaped(line[:end]), _unescaped(value)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    out, position = [], 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "\\" and position < len(text):
            char = text[position]
            position += 1
            code = text[position : position + 4]
            if char == "u" and len(code) == 4 and all(c in "0123456789abcdefABCDEF" for c in code):
                char = chr(int(code, 16))
                position += 4
            else:
                char = _ESCAPES.get(char, char)
        out.append(char)
    return "".join(out)
