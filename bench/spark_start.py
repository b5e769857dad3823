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
Results = dict[str, dict[str, Spread]]


def measure(rounds: int, tick: Tick) -> Results:
    runs: dict[str, list[Figures]] = {name: [] for name in GOALS}
    with running(OttlaNode) as node:
        for topic in TOPICS:
            create_topic(node, topic, 2)
        spark_pipeline.fill(bootstrap(node), "orders", ORDERS)
        for number in range(rounds):
            tick(f"round {number + 1}: pipeline test")
            runs["pipeline test"].append(_seconds([*OTTLA, "test", str(FILE)], None))
            tick(f"round {number + 1}: pipeline run")
            with tempfile.TemporaryDirectory() as checkpoint:
                command = [*OTTLA, "run", str(FILE), "--checkpoint", str(Path(checkpoint, "c"))]
                figures = _seconds(command, "batch", OTTLA_BOOTSTRAP=bootstrap(node))
                runs["pipeline run, first batch"].append(figures)
    return {name: spreads(figures) for name, figures in runs.items()}


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
    for name, goal in GOALS.items():
        seconds, cpu = results[name]["seconds"], results[name]["cpu_s"]
        rows.append(
            [
                report.Cell(name),
                report.Cell(f"{seconds.median:.1f} ({seconds.low:.1f} to {seconds.high:.1f})"),
                report.Cell(f"{cpu.median:.1f}"),
                report.Cell(f"{goal:g}", seconds.median <= goal),
            ]
        )
    return report.Sheet("First seconds", ("", "s", "CPU, s", "goal, s"), rows)
