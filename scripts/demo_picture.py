"""The picture of a demo: throughput, lag and batch time over the seconds of the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

GENERATED, PROCESSED, LAG, DEAD = "#8d99ae", "#2a6f97", "#e07a1f", "#a4133c"


class Batch(NamedTuple):
    """A batch of a flow, at the second of the run at which it was done."""

    second: float
    flow: str
    rows_in: int
    lag: int
    duration_s: float


class Run(NamedTuple):
    """What is drawn: the orders sent and the batches done, at seconds of the run."""

    sent: Sequence[tuple[float, int]]
    batches: Sequence[Batch]
    main_flow: str
    title: str

    def since_first_order(self) -> Run:
        begun = self.sent[0][0]
        return self._replace(
            sent=[(second - begun, count) for second, count in self.sent],
            batches=[batch._replace(second=batch.second - begun) for batch in self.batches],
        )


def draw(whole: Run, path: Path) -> None:
    run = whole.since_first_order()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: Any = {
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
    }
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(3, 1, figsize=(11, 9.5), sharex=True)
        _throughput(axes[0], run)
        _lag(axes[1], run)
        _batch_time(axes[2], run)
        _moments(axes, run)
        axes[2].set_xlabel("seconds since the first order")
        axes[2].set_xlim(left=0)
        figure.suptitle(run.title, x=0.01, ha="left", fontsize=14)
        figure.tight_layout(rect=(0, 0, 1, 0.98))
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


def _own(run: Run) -> list[Batch]:
    return [batch for batch in run.batches if batch.flow == run.main_flow]


def _throughput(axis: Any, run: Run) -> None:
    """A batch's rows are spread over the time since the batch before it was done."""
    seconds, counts = _per_second(run.sent)
    axis.step(
        seconds, counts, where="post", color=GENERATED, linewidth=2, label="generated", zorder=3
    )
    before = 0.0
    label = "processed"
    for batch in _own(run):
        begun = max(before, batch.second - batch.duration_s)
        before = batch.second
        if batch.rows_in and batch.second > begun:
            height = batch.rows_in / (batch.second - begun)
            axis.bar(
                begun, height, batch.second - begun, align="edge", color=PROCESSED, alpha=0.55,
                edgecolor="white", linewidth=0.6, label=label,
            )  # fmt: skip
            label = "_again"
    axis.set_title("Throughput")
    _dress(axis, "orders per second")


def _lag(axis: Any, run: Run) -> None:
    """What the pipeline reports after each batch, over what the demo itself knows was waiting."""
    own = _own(run)
    seconds, waiting = _waiting(run.sent, own)
    axis.fill_between(
        seconds, waiting, step="post", color=LAG, alpha=0.25, linewidth=0,
        label="sent, and not yet in a finished batch",
    )  # fmt: skip
    axis.plot(
        [batch.second for batch in own], [batch.lag for batch in own],
        color=LAG, marker="o", markersize=4, linewidth=1.2, label="as reported after each batch",
    )  # fmt: skip
    axis.set_title("Lag")
    _dress(axis, "orders")


def _batch_time(axis: Any, run: Run) -> None:
    flows = sorted({batch.flow for batch in run.batches}, key=lambda flow: flow != run.main_flow)
    for flow, color, marker in zip(flows, (PROCESSED, DEAD), ("o", "s"), strict=False):
        mine = [batch for batch in run.batches if batch.flow == flow]
        axis.plot(
            [batch.second for batch in mine], [batch.duration_s for batch in mine],
            color=color, marker=marker, markersize=4, linewidth=1.2, label=f"flow {flow}",
        )  # fmt: skip
    axis.set_title("Batch time")
    _dress(axis, "seconds")


def _moments(axes: Sequence[Any], run: Run) -> None:
    """Where batches begin and generation ends, as lines through all three."""
    moments = [(run.sent[-1][0], "last order")]
    if run.batches:
        moments.append((min(batch.second for batch in run.batches), "first batch done"))
    for height, (second, words) in zip((4, 17), moments, strict=False):
        for axis in axes:
            axis.axvline(second, color="#6c757d", linewidth=0.9, linestyle=":")
        # One on top of the other, since the two may be close together.
        axes[2].annotate(
            words, (second, 0), xycoords=("data", "axes fraction"), xytext=(4, height),
            textcoords="offset points", fontsize=9, color="#6c757d",
        )  # fmt: skip


def _dress(axis: Any, unit: str) -> None:
    axis.set_ylabel(unit)
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", color="#dee2e6", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    # Above the lines, where it hides none of them.
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, borderpad=0)


def _per_second(sent: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Ticks put together to whole seconds."""
    counts: dict[int, int] = {}
    for second, count in sent:
        counts[int(second)] = counts.get(int(second), 0) + count
    # A step down to nothing shows where it ends.
    counts[max(counts, default=0) + 1] = 0
    seconds = sorted(counts)
    return [float(second) for second in seconds], [float(counts[second]) for second in seconds]


def _waiting(
    sent: Sequence[tuple[float, int]], batches: Sequence[Batch]
) -> tuple[list[float], list[int]]:
    """The running difference between what was sent and what finished batches have read."""
    changes = [*sent, *((batch.second, -batch.rows_in) for batch in batches)]
    seconds, heights, height = [0.0], [0], 0
    for second, change in sorted(changes):
        height += change
        seconds.append(second)
        heights.append(max(0, height))
    return seconds, heights
