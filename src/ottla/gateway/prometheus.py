"""Writes metrics in Prometheus' text format, version 0.0.4.

prometheus-client would do the same for nine times the CPU, on the event loop, and cost 60 ms and
7 MB to import (docs/adr/metrics-text.md). Its parser checks this writer in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Number: TypeAlias = int | float
Kind: TypeAlias = Literal["counter", "gauge"]


# The values of the family's label names, in their order, and the value.
Sample: TypeAlias = tuple[tuple[str, ...], Number]


class Family(NamedTuple):
    """All series of one name."""

    name: str
    kind: Kind
    help: str
    label_names: tuple[str, ...]
    samples: Iterable[Sample]


class Buckets(NamedTuple):
    """A histogram's state: `counts` has one entry more than `bounds`, for what is above all."""

    labels: tuple[str, ...]
    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


class HistogramFamily(NamedTuple):
    """All histograms of one name."""

    name: str
    help: str
    label_names: tuple[str, ...]
    samples: Iterable[Buckets]


def render(families: Iterable[Family | HistogramFamily]) -> bytes:
    """The text a scraper reads."""
    lines: list[str] = []
    for family in families:
        if isinstance(family, Family):
            _write_head(lines, family.name, family.kind, family.help)
            _write_samples(lines, family)
        else:
            _write_head(lines, family.name, "histogram", family.help)
            for buckets in family.samples:
                _write_buckets(lines, family, buckets)
    return "".join(lines).encode()


def _write_head(lines: list[str], name: str, kind: str, help: str) -> None:
    escaped = help.replace("\\", r"\\").replace("\n", r"\n")
    lines.append(f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n")


def _write_samples(lines: list[str], family: Family) -> None:
    name, names = family.name, family.label_names
    if len(names) == 1:
        # Topics are many, and are told apart by one label.
        start = f'{name}{{{names[0]}="'
        for (label,), value in family.samples:
            lines.append(f'{start}{_escape(label)}"}} {value!r}\n')
        return
    for labels, value in family.samples:
        lines.append(f"{name}{_labels(names, labels)} {value!r}\n")


def _write_buckets(lines: list[str], family: HistogramFamily, buckets: Buckets) -> None:
    """Prometheus' buckets are cumulative, ours are not, because one add is cheaper than many."""
    names = (*family.label_names, "le")
    bounds = (*(repr(bound) for bound in buckets.bounds), "+Inf")
    below = 0
    for bound, count in zip(bounds, buckets.counts, strict=True):
        below += count
        labels = _labels(names, (*buckets.labels, bound))
        lines.append(f"{family.name}_bucket{labels} {below}\n")
    labels = _labels(family.label_names, buckets.labels)
    lines.append(f"{family.name}_sum{labels} {buckets.total!r}\n")
    lines.append(f"{family.name}_count{labels} {below}\n")


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = ",".join(f'{n}="{_escape(v)}"' for n, v in zip(names, values, strict=True))
    return f"{{{pairs}}}"


def _escape(value: str) -> str:
    if '"' in value or "\\" in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value
