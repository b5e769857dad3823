"""The figures of every run, one line of JSON each, so that a lost microsecond is found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.runner import Results
from bench.spread import Figures

HOME: Final = Path("docs/benchmarks")
HISTORY: Final = HOME / "history.jsonl"
DIGITS: Final = 5


def record(
    kind: str, about: Mapping[str, Any], floors: Figures, sides: Mapping[str, Results]
) -> dict[str, Any]:
    """One run as it is stored: each figure as median, lowest and highest."""
    return {
        "kind": kind,
        **about,
        "floors": {name: _short(value) for name, value in floors.items()},
        "sides": {
            side: {
                case: {name: [_short(part) for part in spread] for name, spread in figures.items()}
                for case, figures in results.items()
            }
            for side, results in sides.items()
        },
    }


def append(run: Mapping[str, Any], path: Path = HISTORY) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(run, ensure_ascii=False) + "\n")


def load(kind: str, path: Path = HISTORY) -> list[dict[str, Any]]:
    """The stored runs of a kind, oldest first."""
    if not path.exists():
        return []
    runs = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [run for run in runs if run["kind"] == kind]


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
