"""Pictures of the history, as SVG under docs/benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench import history
from bench.cases import QUICK
from bench.figures import FIGURES

# What the broker's issue promises, one small picture each.
WATCHED: Final = (
    ("start", "first_ack_s"),
    ("idle", "rss_mb"),
    ("backlog-100B", "both_cpu_us"),
    ("backlog-100B-synced", "both_cpu_us"),
    ("requests-1", "request_cpu_us"),
    ("requests-16", "request_cpu_us"),
    ("partitions-5000", "restart_s"),
    ("partitions-5000", "rss_mb"),
    ("latency-1k-synced", "latency_p99_ms"),
)
RUNS_MAX: Final = 60


def draw_all() -> list[Path]:
    drawn = []
    runs = history.load("quick")[-RUNS_MAX:]
    if runs:
        drawn.append(draw_history(runs, history.HOME / "history.svg"))
    return drawn


def draw_history(runs: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Each promised figure over the runs, with its goal as a line."""
    pyplot = pyplot_to_svg()
    limits = {case.name: case.limits for case in QUICK}
    rows = (len(WATCHED) + 2) // 3
    figure, axes = pyplot.subplots(rows, 3, figsize=(12, 2.6 * rows), squeeze=False)
    for axis, (case, name) in zip(axes.flat, WATCHED, strict=False):
        points = [
            (index, run["sides"]["ottla"][case][name])
            for index, run in enumerate(runs)
            if name in run["sides"]["ottla"].get(case, {})
        ]
        positions = [index for index, _ in points]
        axis.plot(positions, [median for _, (median, _, _) in points], "o-", color="#2a6f97")
        axis.fill_between(
            positions,
            [low for _, (_, low, _) in points],
            [high for _, (_, _, high) in points],
            color="#2a6f97",
            alpha=0.15,
        )
        if name in limits.get(case, {}):
            axis.axhline(limits[case][name], color="#c1121f", linewidth=1, linestyle="--")
        axis.set_title(f"{case}: {FIGURES[name].heading}", fontsize=9)
        axis.set_ylim(bottom=0)
        axis.set_xlim(-0.5, len(runs) - 0.5)
        axis.set_xticks(range(len(runs)), [str(run["rev"]) for run in runs], rotation=60)
        axis.tick_params(labelsize=7)
    return save(figure, path)


def pyplot_to_svg() -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    # Without a salt every drawing would differ from the last in its ids.
    mpl.rcParams["svg.hashsalt"] = "ottla"
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    return path
