"""A real Spark that stands by; tests/scenarios/test_standby.py has how a command is handed over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ottla.pipelines.launch.session import local_cores
from scenarios.polling import until
from scenarios.terminals import INTERRUPT, all_of, at_a_terminal
from spark.kit import session
from spark.kit.pipeline_runs import PATIENCE_S
from spark.kit.toolchain import require

OTTLA = [sys.executable, "-m", "ottla", "pipeline"]

FILE = """\
version: 1
name: ticking
sources:
  ticks: {rate: 50}
views:
  seen: {python: looking:looking}
sinks:
  out: {from: seen, files: out/, format: json}
"""

# Where the command is, and what is left there of earlier ones.
LOOKING = """\
import json, os
from pathlib import Path

def looking(spark, ticks):
    found = {
        "driver": os.getpid(),
        "name": spark.sparkContext.appName,
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "tables": [table.name for table in spark.catalog.listTables()],
        "queries": len(spark.streams.active),
    }
    Path(__file__).with_name("found.json").write_text(json.dumps(found))
    return ticks
"""


def standing_by(directory: Path) -> list[int]:
    """Processes that were left there."""
    found = (one.info for one in psutil.process_iter(["pid", "cmdline", "cwd"]))
    return [
        one["pid"]
        for one in found
        if "ottla.cli.standby_process" in (one["cmdline"] or ()) and one["cwd"] == str(directory)
    ]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Nobody stands by in the end: there is one place for all tests of a user."""
    environment = {**os.environ, **session.environment(), "OTTLA_STANDBY": "on"}
    yield environment
    end = [*OTTLA, "warm", "--end"]

    def has_gone() -> bool:
        subprocess.run(end, env=environment, timeout=PATIENCE_S, check=True, capture_output=True)
        return not standing_by(tmp_path)

    until(has_gone, "it does not end", PATIENCE_S)


@pytest.mark.seconds(500)
def test_a_run_at_a_terminal_in_a_spark_that_stood_by(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    require("java")
    (tmp_path / "p.yaml").write_text(FILE)
    warm = subprocess.run(
        [*OTTLA, "warm", "p.yaml"],
        env=environment,
        cwd=tmp_path,
        timeout=PATIENCE_S,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "A Spark stands by for p.yaml" in warm.stderr
    [driver] = standing_by(tmp_path)
    # It was started before there was any such file.
    (tmp_path / "looking.py").write_text(LOOKING)
    command, terminal = at_a_terminal([*OTTLA, "run", "p.yaml"], environment, tmp_path)
    found = tmp_path / "found.json"
    until(lambda: list(tmp_path.glob("out/*.json")), "no batch has ended", PATIENCE_S)
    os.write(terminal, INTERRUPT)
    shown = all_of(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]) == 130, shown
    assert json.loads(found.read_text()) == {
        "driver": driver,
        "name": "ottla ticking",
        "partitions": str(local_cores("local[*]")),
        # Of this file, and of nothing that ran before.
        "tables": ["ticks"],
        "queries": 0,
    }
    assert "Finishing the batch; Ctrl-C again ends at once." in shown
    assert "Traceback" not in shown
    assert " in " in shown, "lines for a person, not JSON"
    # It has left one for the next.
    until(lambda: set(standing_by(tmp_path)) - {driver}, "nobody stands by", PATIENCE_S)
