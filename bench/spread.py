"""Medians, percentiles and the spread of repeated runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

Figures = dict[str, float]

# The points of a latency curve are figures, too, but of one run, and only for pictures.
CURVE_PREFIX: Final = "curve_p"


class Spread(NamedTuple):
    """What repeated runs gave for one figure."""

    median: float
    low: float
    high: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spreads(runs: Iterable[Figures]) -> dict[str, Spread]:
    """Each figure's median, lowest and highest value over the runs."""
    columns: dict[str, list[float]] = {}
    for figures in runs:
        for name, value in figures.items():
            if name.startswith(CURVE_PREFIX):
                continue
            columns.setdefault(name, []).append(value)
    return {
        name: Spread(statistics.median(values), min(values), max(values))
        for name, values in columns.items()
    }
