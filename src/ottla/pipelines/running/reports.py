"""What a run tells about itself: one report per batch, and events between them.

A person gets a line, a program gets JSON; the keys of the JSON are a promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

EventKind = Literal["started", "restarting", "stopping", "stopped", "done", "note"]


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """A batch that Spark has finished and noted in the checkpoint."""

    flow: str
    batch: int
    # When the batch began: UTC, ISO 8601 with milliseconds.
    at: str
    rows_in: int = 0
    rows_out: int = 0
    bad: int = 0
    rows_per_s: float = 0.0
    batch_ms: int = 0
    # How many messages of each topic source the flow has still to read; None: nobody answered.
    lag: Mapping[str, int | None] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    # The same as rows_in and bad, for each source.
    rows_in_by_source: Mapping[str, int] = field(default_factory=dict)
    bad_by_source: Mapping[str, int] = field(default_factory=dict)

    def line(self, flow_width: int = 0) -> str:
        """For a terminal: `flow_width` aligns the lines of several flows."""
        parts = [
            self.at[11:19],
            self.flow.ljust(flow_width),
            f"#{self.batch}".ljust(6),
            f"{human(self.rows_in):>6} in",
            f"{human(self.rows_out):>6} out",
            f"{human(self.rows_per_s):>6}/s",
            f"{human_ms(self.batch_ms):>7}",
        ]
        if self.lag:
            parts.append("lag " + " ".join(f"{n} {human(m)}" for n, m in self.lag.items()))
        if self.state_rows or self.state_bytes:
            parts.append(f"state {human(self.state_rows)} rows {human_bytes(self.state_bytes)}")
        if self.bad:
            parts.append(f"{human(self.bad)} bad")
        return "  ".join(parts)

    def json(self) -> dict[str, Any]:
        """For a program: one flat object, the same keys for every batch."""
        return {
            "type": "batch",
            "at": self.at,
            "flow": self.flow,
            "batch": self.batch,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "bad": self.bad,
            "rows_per_s": round(self.rows_per_s, 1),
            "batch_ms": self.batch_ms,
            "lag": dict(self.lag),
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            "sources": {
                name: {"rows_in": rows, "bad": self.bad_by_source.get(name, 0)}
                for name, rows in self.rows_in_by_source.items()
            },
        }


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happens beside the batches; `text` is one sentence without secrets."""

    kind: EventKind
    text: str
    at: str
    flow: str | None = None

    def line(self, flow_width: int = 0) -> str:
        who = (self.flow or "").ljust(flow_width)
        return f"{self.at[11:19]}  {who}  {self.text}" if who else f"{self.at[11:19]}  {self.text}"

    def json(self) -> dict[str, Any]:
        return {"type": self.kind, "at": self.at, "flow": self.flow, "text": self.text}


Report: TypeAlias = BatchReport | Event
Reporter: TypeAlias = Callable[[Report], None]

_UNITS: Final = ("", "k", "M", "G", "T")


def human(number: float | None) -> str:
    """1234 as 1.23k: three digits are enough to see what happens."""
    if number is None:
        return "?"
    return _scaled(float(number), 1000.0, _UNITS)


def human_bytes(number: float) -> str:
    return _scaled(float(number), 1024.0, (" B", " KiB", " MiB", " GiB", " TiB"))


def human_ms(ms: int) -> str:
    if ms < 10_000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s"


def _scaled(number: float, step: float, units: tuple[str, ...]) -> str:
    at = 0
    while number >= step - 0.5 and at < len(units) - 1:
        number /= step
        at += 1
    if at == 0 and (number >= 100 or number == int(number)):
        return f"{number:.0f}{units[at]}"
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}{units[at]}"
