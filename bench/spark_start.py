"""The first seconds of `ottla pipeline`: until its tests are over, until its first batch has ended.

Processes as a person starts them, the example as it is, and CPU seconds of all that they start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import report, spark_pipeline
from bench.librdkafka import LoadFailed
from bench.nodes import OttlaNode, bootstrap, create_topic, running
from bench.runner import Tick
from bench.spark import JOB_TIMEOUT_S, TreeMeter
from bench.spread import Figures, Spread, spreads

FILE: Final = spark_pipeline.EXAMPLE / "pipeline.yaml"
TOPICS: Final = ("orders", "orders.dead", "orders-per-minute")
ORDERS: Final = 3000
OTTLA: Final = (sys.executable, "-m", "ottla", "pipeline")
# What a person may wait for, in seconds.
GOALS: Final = {"pipeline test": 8.0, "pipeline run, first batch": 10.0}
# A Spark of its own, or the one that stood by for it.
ALONE, STANDBY = "cold", "standby"
SWITCH: Final = {ALONE: "off", STANDBY: "on"}
Results = dict[tuple[str, str], dict[str, Spread]]


def measure(rounds: int, tick: Tick) -> Results:
    runs: dict[tuple[str, str], list[Figures]] = {
        (name, how): [] for name in GOALS for how in SWITCH
    }
    with running(OttlaNode) as node:
        for topic in TOPICS:
            create_topic(node, topic, 2)
        spark_pipeline.fill(bootstrap(node), "orders", ORDERS)
        address = {"OTTLA_BOOTSTRAP": bootstrap(node)}
        for number in range(rounds):
            for name, how in runs:
                tick(f"round {number + 1}: {name}, {how}")
                environment = address | {"OTTLA_STANDBY": SWITCH[how]}
                if how == STANDBY:
                    _warm(environment)
                with tempfile.TemporaryDirectory() as directory:
                    checkpoint = str(Path(directory, "c"))
                    is_test = name == "pipeline test"
                    more = [] if is_test else ["--checkpoint", checkpoint]
                    command = [*OTTLA, "test" if is_test else "run", str(FILE), *more]
                    wanted = None if is_test else "batch"
                    runs[name, how].append(_seconds(command, wanted, **environment))
                _end_standby(environment)
    return {name: spreads(figures) for name, figures in runs.items()}


def _warm(environment: dict[str, str]) -> None:
    subprocess.run(
        [*OTTLA, "warm", str(FILE)],
        env={**os.environ, **environment},
        check=True,
        stderr=subprocess.DEVNULL,
    )


def _end_standby(environment: dict[str, str]) -> None:
    """The one that a command has left for the next would work beside what is measured next."""
    while True:
        time.sleep(1)
        done = subprocess.run(
            [*OTTLA, "warm", "--end"],
            env={**os.environ, **environment},
            check=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.stderr.startswith("None"):
            return


def _seconds(command: Sequence[str], wanted: str | None, **environment: str) -> Figures:
    """Until it ends, or has written a row of that type, and is stopped then."""
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        with TreeMeter(process.pid) as tree:
            assert process.stdout is not None
            for line in process.stdout:
                if wanted is not None and json.loads(line)["type"] == wanted:
                    break
            if wanted is None:
                process.wait(JOB_TIMEOUT_S)
            seconds = time.perf_counter() - started
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=JOB_TIMEOUT_S)
    if wanted is None and process.returncode:
        raise LoadFailed(f"{' '.join(command)}: exit code {process.returncode}")
    return {"seconds": seconds, "cpu_s": tree.cpu_seconds}


def sheet(results: Results) -> report.Sheet:
    rows = []
    for (name, how), figures in results.items():
        seconds, cpu = figures["seconds"], figures["cpu_s"]
        goal = GOALS[name]
        rows.append(
            [
                report.Cell(f"{name}, {how}"),
                report.Cell(f"{seconds.median:.1f} ({seconds.low:.1f} to {seconds.high:.1f})"),
                # What a process that stands by has used is not the command's.
                report.Cell(f"{cpu.median:.1f}" if how == ALONE else "-"),
                report.Cell(f"{goal:g}", seconds.median <= goal),
            ]
        )
    return report.Sheet("First seconds", ("", "s", "CPU, s", "goal, s"), rows)
