"""Pipelines killed over and over, seed by seed, and the figures of all seeds at the end.

    python scripts/soak.py --seeds 10 --kills 20 --minutes 5

Ends with 1 when a seed has failed; `--first N` runs that one alone again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = (
    "tests/spark/pipelines/test_killed.py",
    "tests/spark/pipelines/test_two_by_two.py",
    "tests/spark/test_crashes.py::test_the_driver_is_killed",
)


def main() -> int:
    asked = arguments()
    seeds = range(asked.first, asked.first + asked.seeds)
    failed: list[int] = []
    with tempfile.TemporaryDirectory(prefix="ottla-soak-") as directory:
        figures = Path(directory, "figures")
        figures.touch()
        for seed in seeds:
            began = time.monotonic()
            print(f"seed {seed}, the last is {seeds[-1]}", flush=True)
            is_good = survives(seed, asked, figures)
            print(
                f"seed {seed}: {'survived' if is_good else 'FAILED'} "
                f"after {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if not is_good:
                failed.append(seed)
        print("\n".join(table(map(json.loads, figures.read_text().splitlines()))))
    if failed:
        print(f"failed: {', '.join(f'--first {seed} --seeds 1' for seed in failed)}")
    print(f"{len(seeds) - len(failed)} of {len(seeds)} seeds survived")
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--kills", type=int, default=20, help="per test and seed (default 20)")
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="with a dying broker, per seed (default 5)"
    )
    return parser.parse_args()


def survives(seed: int, asked: argparse.Namespace, figures: Path) -> bool:
    told = {
        "SOAK_SEED": str(seed),
        "SOAK_KILLS": str(asked.kills),
        "SOAK_MINUTES": str(asked.minutes),
        "SOAK_FIGURES": str(figures),
    }
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:xdist", *TESTS]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **told}).returncode == 0


def table(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """One row per test: the sums over all seeds."""
    sums: dict[str, Counter[str]] = {}
    for line in lines:
        figures = {name: value for name, value in line.items() if name not in ("seed", "test")}
        sums.setdefault(line["test"], Counter()).update({"seeds": 1, **figures})
    names = list(dict.fromkeys(name for one in sums.values() for name in one))
    rows = [["test", *names], ["---"] * (len(names) + 1)]
    rows += [[test, *(f"{one[name]:,}" for name in names)] for test, one in sums.items()]
    return [f"| {' | '.join(row)} |" for row in rows]


if __name__ == "__main__":
    sys.exit(main())
