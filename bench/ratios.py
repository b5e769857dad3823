"""The comparison's tables: the goals at a glance, then every figure of every row."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import Case
from bench.figures import FIGURES, FLOOR_FIGURES, FLOOR_OF, times_floor
from bench.peer_cases import PROMISES, ROWS, WITH_THE_CLUSTER
from bench.report import Cell, Sheet, with_spread
from bench.runner import Results
from bench.spread import Figures


def comparison_sheets(
    cases: Sequence[Case],
    ottla: Results,
    peer: Results,
    floors: Figures,
    peer_name: str,
    note: str,
) -> list[Sheet]:
    measured = [case for case in cases if case.name in ottla and case.name in peer]
    rows = sorted({case.row for case in measured})
    return [
        _goal_sheet(measured, ottla, peer, peer_name, note),
        *_promise_sheets(measured, ottla, floors),
        *(
            _row_sheet(row, [c for c in measured if c.row == row], ottla, peer, floors, peer_name)
            for row in rows
        ),
    ]


def is_met(name: str, ratio: float, limit: float) -> bool:
    return ratio >= limit if FIGURES[name].more_is_better else ratio <= limit


def ratio_of(case: Case, name: str, ottla: Results, peer: Results) -> float | None:
    ours, theirs = ottla[case.name].get(name), peer[case.name].get(name)
    return ours.median / theirs.median if ours and theirs and theirs.median else None


def _goal_sheet(
    cases: Sequence[Case], ottla: Results, peer: Results, peer_name: str, note: str
) -> Sheet:
    """Each goal once: the ratios of all its cases from the worst to the best."""
    lines: list[list[Cell]] = []
    present = {case.row for case in cases}
    for row, title in ROWS.items():
        if row in present:
            lines += _goal_lines(row, [c for c in cases if c.row == row], ottla, peer)
        elif row in WITH_THE_CLUSTER and not present <= set(WITH_THE_CLUSTER):
            where = WITH_THE_CLUSTER[row]
            lines.append([Cell(f"{row} · {title}"), *map(Cell, (where, "", "", ""))])
    return Sheet(
        f"Ottla as a multiple of {peer_name}",
        ("row", "figure", "worst to best case", "met", "goal"),
        lines,
        note,
    )


def _goal_lines(row: int, cases: Sequence[Case], ottla: Results, peer: Results) -> list[list[Cell]]:
    lines = []
    goals = {name: limit for case in cases for name, limit in case.limits.items()}
    for name, limit in goals.items():
        figure = FIGURES[name]
        ratios = [
            ratio
            for case in cases
            if name in case.limits and (ratio := ratio_of(case, name, ottla, peer)) is not None
        ]
        if not ratios:
            continue
        ratios.sort(reverse=not figure.more_is_better)
        met = sum(is_met(name, ratio, limit) for ratio in ratios)
        ends = dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[0], ratios[-1]))
        lines.append(
            [
                Cell(f"{row} · {ROWS[row]}"),
                Cell(figure.heading),
                Cell(" … ".join(ends), met == len(ratios)),
                Cell(f"{met} of {len(ratios)}"),
                Cell(_goal(name, limit)),
            ]
        )
    return lines


def _row_sheet(
    row: int,
    cases: Sequence[Case],
    ottla: Results,
    peer: Results,
    floors: Figures,
    peer_name: str,
) -> Sheet:
    lines = []
    for case in cases:
        shown = case.title
        for name, ours in ottla[case.name].items():
            theirs = peer[case.name].get(name)
            if theirs is None:
                continue
            figure, limit = FIGURES[name], case.limits.get(name)
            ratio = ratio_of(case, name, ottla, peer)
            verdict = None
            if limit is not None and ratio is not None:
                verdict = is_met(name, ratio, limit)
            lines.append(
                [
                    Cell(shown),
                    Cell(figure.heading),
                    Cell(with_spread(ours, figure.text)),
                    Cell(with_spread(theirs, figure.text)),
                    Cell("" if ratio is None else f"{ratio:.2f}", verdict),
                    Cell("" if limit is None else _goal(name, limit)),
                    Cell(_times_floor(case, name, (ours.median, theirs.median), floors)),
                ]
            )
    headings = ("load", "figure", "Ottla", peer_name, "ratio", "goal", "times its floor")
    return Sheet(f"{row} · {ROWS[row]}", headings, lines)


def _times_floor(case: Case, name: str, values: Sequence[float], floors: Figures) -> str:
    floor = case.floors.get(name, FLOOR_OF.get(name, ""))
    if floor not in floors or not all(values):
        return ""
    return ", ".join(f"{times_floor(name, value, floors[floor]):.1f}" for value in values)


def _promise_sheets(cases: Sequence[Case], ottla: Results, floors: Figures) -> list[Sheet]:
    """What is promised whatever the peer does; nothing where its cases did not run."""
    titles = {case.name: f"{case.row} · {case.title}" for case in cases}
    lines = []
    for promise in PROMISES:
        spread = ottla.get(promise.case, {}).get(promise.figure)
        if promise.case not in titles or spread is None:
            continue
        figure, value, unit = FIGURES[promise.figure], spread.median, ""
        text = figure.text(value) + f" {figure.unit}"
        if promise.floor:
            value /= floors[promise.floor]
            text, unit = f"{value:.1f} times", f" times {FLOOR_FIGURES[promise.floor].label}"
        lines.append(
            [
                Cell(titles[promise.case]),
                Cell(figure.label),
                Cell(text, value <= promise.limit),
                Cell(f"≤ {promise.limit:g}{unit or f' {figure.unit}'}"),
            ]
        )
    if not lines:
        return []
    return [Sheet("Promised by itself", ("load", "figure", "Ottla", "goal"), lines)]


def _goal(name: str, limit: float) -> str:
    return f"{'≥' if FIGURES[name].more_is_better else '≤'} {limit:g}"
