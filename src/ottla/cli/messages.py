"""How a consumed message is written: `%t %p %o %T %k %v %h`, or JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.cli.failures import WrongUsage
from ottla.cli.output import json_line

DEFAULT_FORMAT: Final = "%v\\n"


class Shown(NamedTuple):
    """A message as far as it can be shown."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


Writer: TypeAlias = Callable[[Shown], bytes]

_FIELDS: Final[dict[str, Writer]] = {
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "T": lambda message: b"%d" % message.timestamp_ms,
    "k": lambda message: message.key or b"",
    "v": lambda message: message.value or b"",
    "h": lambda message: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in message.headers
    ),
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def unescaped(text: str) -> str:
    """`\\n`, `\\t`, `\\r`, `\\0` and `\\\\` as a shell user writes them."""
    out, chars = [], iter(text)
    for char in chars:
        if char == "\\":
            following = next(chars, "\\")
            out.append(_ESCAPES.get(following, "\\" + following))
        else:
            out.append(char)
    return "".join(out)


def compile_format(text: str) -> Writer:
    """The writer for a format; WrongUsage names a field that does not exist."""
    if text == "json":
        return as_json
    parts: list[Writer | bytes] = []
    chars = iter(unescaped(text))
    for char in chars:
        if char != "%":
            parts.append(char.encode())
            continue
        name = next(chars, "")
        if name == "%":
            parts.append(b"%")
        elif name in _FIELDS:
            parts.append(_FIELDS[name])
        else:
            raise WrongUsage(
                f"--format has no field %{name}; there are {' '.join('%' + n for n in _FIELDS)}."
            )
    return lambda message: b"".join(
        part if isinstance(part, bytes) else part(message) for part in parts
    )


def as_json(message: Shown) -> bytes:
    row: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "key": _text(message.key),
        "value": _text(message.value),
        "headers": [[name, _text(value)] for name, value in message.headers],
    }
    return json_line(row).encode() + b"\n"


def _text(data: bytes | None) -> Any:
    """Text where it is text; other bytes as base64, marked as such."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
