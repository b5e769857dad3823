"""Runs a simulated cluster from seeds, and says how each failure is replayed.

python -m ottla.testing.sim --seed 1 --seeds 100
python -m ottla.testing.sim --seed 17 --trace
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from typing import Final

from ottla.testing.sim.run import TROUBLED_S, Report, run_seed
from ottla.testing.sim.troubles import KINDS

# Objects of a world hang together in circles; a process that has run many gives them back.
SEEDS_PER_PROCESS: Final = 25
FAILURES_MAX: Final = 10
STEPS_TOLD: Final = 10


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0" and arguments is None:
        # The order of sets of strings is chance that no seed knows of.
        command = [sys.executable, "-m", "ottla.testing.sim", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    before = logging.root.manager.disable
    # What brokers in trouble say is part of a story, and otherwise noise.
    logging.disable(logging.NOTSET if options.trace else logging.CRITICAL)
    try:
        if options.trace:
            return _tell(_runner(options)(options.seed, tracing=True))
        return _run_all(options)
    finally:
        logging.disable(before)


def _run_all(options: argparse.Namespace) -> int:
    began_s = time.monotonic()
    seeds = range(options.seed, options.seed + options.seeds)
    reports: list[Report] = []
    failures: list[Report] = []
    for report in _with_progress(_run(seeds, options), len(seeds)):
        reports.append(report)
        if report.failure is not None:
            failures.append(report)
            replay = _replay(report.seed, options)
            print(f"seed {report.seed}: {report.failure}\n  {replay}", flush=True)
            if len(failures) >= options.failures_max:
                break
    if options.json:
        _tell_figures(reports)
    elif reports:
        _sum_up(reports, failures, time.monotonic() - began_s)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ottla.testing.sim", description="A cluster in trouble, from a seed."
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=TROUBLED_S, help="of trouble, virtual")
    parser.add_argument(
        "--kinds", type=lambda text: text.split(","), help=f"of trouble: {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--leave-out",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[],
        help="troubles of the plan that are not to happen, by number from 0 on",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--trace", action="store_true", help="tell the story of one seed")
    parser.add_argument("--json", action="store_true", help="figures of each seed, a line each")
    parser.add_argument(
        "--failures-max", type=int, default=FAILURES_MAX, help="stop after so many failures"
    )
    return parser


def _runner(options: argparse.Namespace) -> partial[Report]:
    return partial(
        run_seed,
        nodes=options.nodes,
        seconds=options.seconds,
        kinds=options.kinds,
        leave_out=options.leave_out,
    )


def _run(seeds: range, options: argparse.Namespace) -> Iterator[Report]:
    run = _runner(options)
    workers = min(options.workers, len(seeds))
    if workers <= 1:
        yield from map(run, seeds)
        return
    # Each piece has processes of its own: a pool of Python 3.11 that replaces them while it works
    # (max_tasks_per_child) may stand still for ever.
    for piece in range(0, len(seeds), workers * SEEDS_PER_PROCESS):
        yield from _run_piece(run, seeds[piece : piece + workers * SEEDS_PER_PROCESS], workers)


def _run_piece(run: partial[Report], seeds: range, workers: int) -> Iterator[Report]:
    with ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        try:
            for done in as_completed([pool.submit(run, seed) for seed in seeds]):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _with_progress(reports: Iterator[Report], count: int) -> Iterator[Report]:
    if count == 1:
        yield from reports
    elif sys.stderr.isatty():
        yield from _with_bar(reports, count)
    else:
        for number, report in enumerate(reports, 1):
            if number % (count // STEPS_TOLD or 1) == 0:
                print(f"{number} of {count} seeds", file=sys.stderr, flush=True)
            yield report


def _with_bar(reports: Iterator[Report], count: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("seeds", total=count)
        for report in reports:
            progress.advance(task)
            yield report


def _replay(seed: int, options: argparse.Namespace) -> str:
    nodes = "" if options.nodes == 3 else f" --nodes {options.nodes}"
    seconds = "" if options.seconds == TROUBLED_S else f" --seconds {options.seconds:g}"
    kinds = "" if options.kinds is None else f" --kinds {','.join(options.kinds)}"
    return f"python -m ottla.testing.sim --seed {seed}{nodes}{seconds}{kinds} --trace"


def _tell(report: Report) -> int:
    print("\n".join((*report.plan, *report.story)))
    _sum_up([report], [report] if report.failure else [], report.cpu_s)
    if report.failure is not None:
        print(f"seed {report.seed}: {report.failure}")
    return 1 if report.failure is not None else 0


def _tell_figures(reports: list[Report]) -> None:
    for report in sorted(reports, key=lambda report: report.seed):
        print(json.dumps(report.figures()))


def _sum_up(reports: list[Report], failures: list[Report], wall_s: float) -> None:
    virtual_s = sum(report.virtual_s for report in reports)
    cpu_s = sum(report.cpu_s for report in reports) or 1.0
    pause_s = max(report.longest_pause_s for report in reports)
    print(
        f"longest pause {pause_s:.1f} s, {sum(report.elections for report in reports)} elections, "
        f"{virtual_s / 60:.1f} virtual minutes in {cpu_s / 60:.1f} of CPU ({virtual_s / cpu_s:.0f} "
        "times as fast)"
    )
    # In the form of pytest's last line, which scripts/parts.py reads.
    print(
        f"{len(reports)} seeds, {len(failures)} failed, "
        f"{sum(report.troubles for report in reports)} troubles, "
        f"{sum(report.messages_acknowledged for report in reports)} messages in {wall_s:.1f}s"
    )


if __name__ == "__main__":
    sys.exit(main())
