"""Pictures of a comparison from its stored samples: ratios, throughput, CPU, latency curves.

They are told apart by lightness and hatching, so that they can be read in grey.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.figures import FIGURES
from bench.peer_cases import ROWS
from bench.plots import pyplot_to_svg, save
from bench.spread import CURVE_PREFIX

SIDES: Final = {"ottla": "Ottla", "kafka": "Kafka"}
BARS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ottla": {"color": "#14435f", "edgecolor": "#14435f"},
    "kafka": {"color": "#d9d9d9", "edgecolor": "#666666", "hatch": "////"},
}
LINES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ottla": {"color": "#14435f", "linestyle": "-", "linewidth": 2},
    "kafka": {"color": "#8a8a8a", "linestyle": "--", "linewidth": 2},
}
THROUGHPUT: Final = ("produce_mb_per_s", "consume_mb_per_s", "requests_per_s")
CPU: Final = ("produce_cpu_us", "consume_cpu_us", "both_cpu_us", "request_cpu_us", "latency_cpu_us")
TICKS: Final = (0, 50, 90, 99, 99.9, 99.99)
ROW_INCHES: Final = 0.42


class Samples(NamedTuple):
    about: Mapping[str, Any]
    # By case, side and figure: the value of each round.
    values: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]

    def titles(self) -> dict[str, str]:
        return {case["name"]: f"{case['row']} · {case['title']}" for case in self.about["cases"]}

    def with_figure(self, name: str) -> list[str]:
        """The cases in which both sides have the figure."""
        return [
            case
            for case in self.titles()
            if all(name in self.values.get(case, {}).get(side, {}) for side in SIDES)
        ]

    def median(self, case: str, side: str, name: str) -> float:
        return statistics.median(self.values[case][side][name])


def draw_stored(home: Path) -> list[Path]:
    stored = (home / f"{kind}.json" for kind in ("peers", "peers-pinned", "peers-cluster"))
    return [path for samples in stored if samples.exists() for path in draw(samples)]


def draw(samples_path: Path) -> list[Path]:
    """Beside the samples: `peers.json` gives `peers.svg`, `peers-latency.svg` and so on."""
    samples = _load(samples_path)
    stem = samples_path.with_suffix("")
    drawn = [
        _ratios(samples, stem.with_name(f"{stem.name}.svg")),
        _bars(samples, THROUGHPUT, "Throughput", stem.with_name(f"{stem.name}-throughput.svg")),
        _bars(samples, CPU, "The broker's CPU time", stem.with_name(f"{stem.name}-cpu.svg")),
        _curves(samples, stem.with_name(f"{stem.name}-latency.svg")),
    ]
    return [path for path in drawn if path is not None]


def _load(path: Path) -> Samples:
    about = json.loads(path.read_text())
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for sample in about.pop("samples"):
        figures = values.setdefault(sample["case"], {}).setdefault(sample["side"], {})
        for name, value in sample["figures"].items():
            figures.setdefault(name, []).append(value)
    return Samples(about, values)


class Goal(NamedTuple):
    """One goal of a row, with the ratios of all cases that have it."""

    label: str
    limit: float
    ratios: Sequence[float]
    are_met: Sequence[bool]


def _goals(samples: Samples) -> list[Goal]:
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for case in sorted(samples.about["cases"], key=lambda case: int(case["row"])):
        for name, limit in case["goals"].items():
            if case["name"] not in samples.with_figure(name):
                continue
            theirs = samples.median(case["name"], "kafka", name)
            if theirs:
                ratio = samples.median(case["name"], "ottla", name) / theirs
                found.setdefault((case["row"], name), []).append((ratio, limit))
    goals = []
    for (row, name), pairs in found.items():
        sign = 1 if FIGURES[name].more_is_better else -1
        are_met = [sign * ratio >= sign * limit for ratio, limit in pairs]
        label = f"{row} · {ROWS[row].partition(':')[0]}: {FIGURES[name].heading}"
        goals.append(Goal(label, pairs[0][1], [ratio for ratio, _ in pairs], are_met))
    return goals


def _ratios(samples: Samples, path: Path) -> Path | None:
    """Ottla as a multiple of Kafka: for every goal a dot for each case, and the goal as a mark."""
    goals = _goals(samples)[::-1]
    if not goals:
        return None
    pyplot = pyplot_to_svg()
    figure, axis = pyplot.subplots(figsize=(10, 0.36 * len(goals) + 1.5))
    for place, goal in enumerate(goals):
        low, high = min(goal.ratios), max(goal.ratios)
        axis.plot([low, high], [place, place], color="#9db4c0", linewidth=5, zorder=1)
        fills = ["#14435f" if is_met else "#ffffff" for is_met in goal.are_met]
        edges = ["#14435f" if is_met else "#c1121f" for is_met in goal.are_met]
        dots = [place] * len(goal.ratios)
        axis.scatter(goal.ratios, dots, s=26, color=fills, edgecolor=edges, zorder=3)
        axis.plot(goal.limit, place, "|", color="#e07a1f", markersize=17, markeredgewidth=2.5)
        middle = f"{statistics.median(goal.ratios):.2f}"
        axis.text(
            1.01, place, middle, transform=axis.get_yaxis_transform(), fontsize=8, va="center"
        )
    axis.axvline(1, color="black", linewidth=0.8, zorder=0)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter(lambda value, _: _two_or_five(value))
    axis.set_yticks(range(len(goals)), [goal.label for goal in goals], fontsize=8)
    axis.set_ylim(-0.7, len(goals) - 0.3)
    axis.tick_params(axis="x", which="both", labelsize=7)
    axis.set_title(
        "Ottla as a multiple of Kafka: a dot for each case (hollow: goal missed), the goal as an"
        " upright mark, the median at the right",
        fontsize=9,
        loc="right",
    )
    return _finish(samples, figure, path)


def _bars(samples: Samples, names: Sequence[str], title: str, path: Path) -> Path | None:
    """A panel for each figure: both sides of every case, with lowest and highest run."""
    panels = [(name, cases) for name in names if (cases := samples.with_figure(name))]
    if not panels:
        return None
    pyplot = pyplot_to_svg()
    heights = [len(cases) + 1.5 for _, cases in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(10, ROW_INCHES * sum(heights) + 0.8),
        squeeze=False,
        height_ratios=heights,
    )
    titles = samples.titles()
    for axis, (name, cases) in zip(axes.flat, panels, strict=True):
        for shift, side in zip((-0.19, 0.19), SIDES, strict=True):
            _side_bars(samples, axis, name, cases, side, shift)
        axis.set_yticks(range(len(cases)), [titles[case] for case in cases], fontsize=7)
        axis.set_ylim(len(cases) - 0.4, -0.6)
        axis.margins(x=0.14)
        axis.set_title(FIGURES[name].heading, fontsize=9, loc="left")
        axis.tick_params(axis="x", labelsize=7)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="upper right", ncols=2)
    figure.suptitle(f"{title}: medians, lines from the lowest to the highest run", fontsize=10)
    return _finish(samples, figure, path)


def _side_bars(
    samples: Samples, axis: Any, name: str, cases: Sequence[str], side: str, shift: float
) -> None:
    medians = [samples.median(case, side, name) for case in cases]
    runs = [samples.values[case][side][name] for case in cases]
    ends = [
        [median - min(values) for median, values in zip(medians, runs, strict=True)],
        [max(values) - median for median, values in zip(medians, runs, strict=True)],
    ]
    places = [place + shift for place in range(len(cases))]
    bars = axis.barh(
        places, medians, 0.36, xerr=ends, ecolor="#e07a1f", label=SIDES[side], **BARS[side]
    )
    texts = [FIGURES[name].text(median) for median in medians]
    axis.bar_label(bars, texts, padding=4, fontsize=6)


def _curves(samples: Samples, path: Path) -> Path | None:
    """Percentile on x, stretched towards the tail, ms on y; thin lines are the single rounds."""
    cases = samples.with_figure(f"{CURVE_PREFIX}50")
    if not cases:
        return None
    pyplot = pyplot_to_svg()
    rows = math.ceil(len(cases) / 2)
    figure, axes = pyplot.subplots(rows, 2, figsize=(11, 3.2 * rows + 0.6), squeeze=False)
    titles = samples.titles()
    for axis, case in zip(axes.flat, cases, strict=False):
        for side in SIDES:
            points = _curve(samples.values[case][side])
            places = [_stretched(percent) for percent, _ in points]
            for values in zip(*(values for _, values in points), strict=True):
                axis.plot(places, values, color=LINES[side]["color"], linewidth=0.5, alpha=0.5)
            medians = [statistics.median(values) for _, values in points]
            axis.plot(places, medians, label=SIDES[side], **LINES[side])
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(lambda value, _: _two_or_five(value))
        axis.set_xticks([_stretched(percent) for percent in TICKS], [f"{p:g}" for p in TICKS])
        axis.set_title(titles[case], fontsize=9)
        axis.set_ylabel("ms", fontsize=8)
        axis.set_xlabel("percentile", fontsize=8)
        axis.tick_params(which="both", labelsize=7)
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.legend(fontsize=8, loc="upper left")
    for axis in axes.flat[len(cases) :]:
        axis.set_visible(False)
    figure.suptitle("End-to-end latency by percentile", fontsize=10)
    return _finish(samples, figure, path)


def _curve(figures: Mapping[str, Sequence[float]]) -> list[tuple[float, Sequence[float]]]:
    return sorted(
        (float(name.removeprefix(CURVE_PREFIX)), values)
        for name, values in figures.items()
        if name.startswith(CURVE_PREFIX)
    )


def _stretched(percent: float) -> float:
    """Each further nine takes the same room."""
    return -math.log10(1 - percent / 100)


def _two_or_five(value: float) -> str:
    digit = round(value / 10 ** math.floor(math.log10(value)))
    return f"{value:g}" if digit in (2, 5) else ""


def _finish(samples: Samples, figure: Any, path: Path) -> Path:
    """Where, with what and when, below the picture."""
    about = samples.about
    versions = about["versions"]
    words = (
        f"{about['machine']['cpu']}, {about['machine']['cores']} cores",
        about["machine"]["kernel"],
        f"Ottla {about['rev']}, Python {versions['python']}",
        f"Kafka {versions['kafka']}, Java {versions['java']}",
        f"load by librdkafka {versions['librdkafka']} and, where named, the Java client",
        "broker on one core" if about["is_pinned"] else "not pinned",
        f"{about['rounds']} round{'s' if about['rounds'] > 1 else ''}",
        about["date"][:10],
    )
    figure.supxlabel(" · ".join(words), fontsize=6.5, color="#444444")
    return save(figure, path)
