"""The parts of docs/spark.md that are drawn from the code, between their marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ottla.spark.options import kafka
from ottla.spark.options.catalogue import WITHOUT_EFFECT, render_table

_PART: Final = re.compile(r"(<!-- drawn: (?P<name>[\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str) -> str:
    """The page with its drawn parts replaced; KeyError for a part that is not in PARTS."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part['name']]()}\n{part[3]}", page)


def _names(names: Iterable[str], prefix: str = kafka.PREFIX) -> str:
    return ", ".join(f"`{prefix}{name}`" for name in sorted(names)) + "\n"


def _without_effect() -> str:
    rows = ["| option | why nothing comes of it |", "|---|---|"]
    rows += [f"| `{option.name}` | {option.meaning} |" for option in WITHOUT_EFFECT]
    return "\n".join(rows) + "\n"


def _refused() -> str:
    rows = ["| option | instead |", "|---|---|"]
    rows += [f"| `kafka.{name}` | {why} |" for name, why in kafka.REFUSED.items()]
    return "\n".join(rows) + "\n"


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "both": lambda: render_table("both"),
    "read": lambda: render_table("read"),
    "write": lambda: render_table("write"),
    "carried": _without_effect,
    "kafka both": lambda: _names(kafka.CLIENT),
    "kafka read": lambda: _names(kafka.READ),
    "kafka write": lambda: _names(kafka.WRITE),
    "kafka carried": lambda: _names(kafka.WITHOUT_EFFECT),
    "kafka refused": _refused,
}
