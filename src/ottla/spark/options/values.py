"""Text into values: every option arrives as text, and a wrong one gets one readable line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

LONG_MAX: Final = 2**63 - 1
SHOWN_CHARS: Final = 120

# The units of Spark's own parser of durations; a number without one counts milliseconds.
MS_PER_UNIT: Final[Mapping[str, float]] = {
    "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
DURATION: Final = re.compile(r"(-?[0-9]+)([a-z]+)?")
LONG: Final = re.compile(r"[+-]?[0-9]+")


class BadOption(ValueError):
    """An option that cannot be meant so, in one line: the option, its value, what is wanted."""


def raise_bad_option(name: str, value: object, wanted: str, example: str | None = None) -> NoReturn:
    text = str(value)
    if len(text) > SHOWN_CHARS:
        text = text[:SHOWN_CHARS] + "…"
    hint = f", for example {example}" if example is not None else ""
    raise BadOption(f"option {name} is {text!r}; wanted: {wanted}{hint}")


def as_bool(name: str, text: str) -> bool:
    known = {"true": True, "false": False}
    value = known.get(text.strip().lower())
    if value is None:
        raise_bad_option(name, text, "true or false")
    return value


def as_long(
    name: str, text: str, *, least: int, most: int = LONG_MAX, example: str = "1000"
) -> int:
    stripped = text.strip()
    # int() would also take 1_000 and other scripts' digits, which Java's toLong refuses.
    if not LONG.fullmatch(stripped) or not least <= int(stripped) <= most:
        wanted = f"a whole number from {least}" + (f" to {most}" if most < LONG_MAX else "")
        raise_bad_option(name, text, wanted, example)
    return int(stripped)


def as_duration_ms(name: str, text: str) -> int:
    found = DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in (None, *MS_PER_UNIT):
        raise_bad_option(name, text, "a duration in " + ", ".join(MS_PER_UNIT), "15m or 10s")
    duration_ms = int(int(found[1]) * MS_PER_UNIT[found[2] or "ms"])
    if not 0 <= duration_ms <= LONG_MAX:
        raise_bad_option(name, text, "a duration that is not negative", "15m or 10s")
    return duration_ms


def as_choice(name: str, text: str, choices: Iterable[str]) -> str:
    known = tuple(choices)
    value = text.strip().lower()
    if value not in known:
        raise_bad_option(name, text, "one of " + ", ".join(known))
    return value


def as_json(name: str, text: str, wanted: str, example: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise_bad_option(name, text, wanted, example)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
