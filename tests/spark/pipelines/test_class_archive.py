"""What `ottla pipeline prepare` makes, which tests/spark begins with, and who uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipelines.launch.class_archive import archive_of
from ottla.spark.startup.spark_home import spark_home
from spark.kit import session
from spark.kit.toolchain import require

MAKING_S_MAX = 600
TIMEOUT_S = 200

# What the JVM has mapped into its memory, once Spark is up and once it has worked.
USING = """\
import sys
from pathlib import Path
from pyspark import SparkContext
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.launch.session import start_session

spark = start_session(read_pipeline(Path(sys.argv[1])), is_brief=True)
assert spark.range(3).count() == 3
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
spark.stop()
"""


def prepare() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "pipeline", "prepare"],
        env={**os.environ, **session.environment()},
        timeout=MAKING_S_MAX,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()


@pytest.mark.seconds(900)
def test_the_archive_is_made_once_and_used_then(tmp_path: Path) -> None:
    require("java")
    home = spark_home()
    assert home is not None
    archive = archive_of(home)
    assert archive is not None
    # Waits for the one that was begun with the tests.
    prepare()
    assert archive.stat().st_size > 100_000_000, "of a rehearsal that failed"
    assert not archive.with_suffix(".making").exists()
    made = archive.stat().st_mtime_ns
    kernels, classes = prepare()
    assert kernels.startswith("Machine code of the kernels is there: ")
    assert classes == f"Java's archive of Spark's classes is there: {archive}"
    assert archive.stat().st_mtime_ns == made

    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nname: p\nsources:\n  ticks: {rate: 1}\n")
    using = [sys.executable, "-c", USING, str(file)]
    environment = {**os.environ, **session.environment(), "SPARK_SUBMIT_OPTS": ""}
    done = subprocess.run(
        using, env=environment, timeout=TIMEOUT_S, capture_output=True, text=True, check=True
    )
    assert archive.name in done.stdout
    assert done.stderr == ""
