"""Tables: on the terminal with rich, and as Markdown under docs/benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.cases import Case
from bench.figures import FIGURES, FLOOR_FIGURES
from bench.runner import Results
from bench.spread import Figures, Spread

# A file has no width of its own, and rich would take 80 columns.
FILE_COLUMNS: Final = 160
FAMILIES: Final = {
    "Start": "Start",
    "Idle": "Idle",
    "Backlog": "Large batches: a backlog written, then read",
    "Requests": "Smallest produce requests: one message each, one at a time per connection",
    "EndToEnd": "End to end",
    "Partitions": "Partitions, written in turn",
    "IdleSession": "Fetches of a session in which nothing happens, by its partitions",
    "Flat": "Memory while data passes through",
}


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    is_met: bool | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table before it has a look."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


def floor_sheet(floors: Figures) -> Sheet:
    rows = [
        [Cell(FLOOR_FIGURES[name].label), Cell(FLOOR_FIGURES[name].text(value)),
         Cell(FLOOR_FIGURES[name].unit)]
        for name, value in floors.items()
    ]  # fmt: skip
    return Sheet("What the machine can do", ("", "", "unit"), rows)


def result_sheets(cases: Iterable[Case], results: Results) -> list[Sheet]:
    """One table per family of loads: a row per case, a column per figure."""
    sheets = []
    measured = [case for case in cases if case.name in results]
    for family, members in groupby(measured, key=lambda case: type(case.load).__name__):
        group = list(members)
        names = list(dict.fromkeys(name for case in group for name in results[case.name]))
        rows = [
            [Cell(case.title), *(_result_cell(case, name, results[case.name]) for name in names)]
            for case in group
        ]
        headings = ("", *(FIGURES[name].heading for name in names))
        sheets.append(Sheet(FAMILIES[family], headings, rows))
    return sheets


def show(sheets: Iterable[Sheet]) -> None:
    """On the terminal, with what meets its limit in green and what does not in red."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_COLUMNS)
    for sheet in sheets:
        table = Table(title=sheet.title, title_justify="left", title_style="bold")
        for position, heading in enumerate(sheet.headings):
            table.add_column(heading, justify="left" if position == 0 else "right")
        for row in sheet.rows:
            table.add_row(*(_coloured(cell) for cell in row))
        console.print(table)
        if sheet.note:
            console.print(sheet.note, highlight=False)


def markdown(title: str, run: Mapping[str, Any], sheets: Iterable[Sheet]) -> str:
    machine = run["machine"]
    lines = [
        f"# {title}",
        "",
        f"{run['date']}, revision {run['rev']}; {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {machine['kernel']}; Python {run['versions']['python']}, "
        f"load by librdkafka {run['versions']['librdkafka']}; "
        f"load of the machine before the run {run['load_before']}. Made by `python -m bench`. "
        "Medians; ± is half the distance between the lowest and the highest run. "
        "✓ and ✗ say whether a goal is met.",
    ]
    for sheet in sheets:
        lines += ["", f"## {sheet.title}", ""]
        if sheet.note:
            lines += [sheet.note, ""]
        lines.append(_line(sheet.headings))
        lines.append(_line(["---"] + ["---:"] * (len(sheet.headings) - 1)))
        lines += [_line([_marked(cell) for cell in row]) for row in sheet.rows]
    return "\n".join(lines) + "\n"


def _result_cell(case: Case, name: str, figures: Mapping[str, Spread]) -> Cell:
    if name not in figures:
        return Cell("")
    figure, spread, limit = FIGURES[name], figures[name], case.limits.get(name)
    text = with_spread(spread, figure.text)
    if limit is None:
        return Cell(text)
    return Cell(f"{text} (≤ {limit:g})", spread.median <= limit)


def with_spread(spread: Spread, text: Callable[[float], str]) -> str:
    if spread.high == spread.low or not spread.median:
        return text(spread.median)
    half = (spread.high - spread.low) / 2 / spread.median * 100
    return f"{text(spread.median)} ±{half:.0f}%"


def _coloured(cell: Cell) -> str:
    if cell.is_met is None:
        return cell.text
    return f"[{'green' if cell.is_met else 'red'}]{cell.text}[/]"


def _marked(cell: Cell) -> str:
    if cell.is_met is None:
        return cell.text
    return f"{cell.text} {'✓' if cell.is_met else '✗'}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
