"""Java's archive of Spark's classes, made as after a first command and used by the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipelines.class_archive import archive_of
from ottla.spark.spark_home import spark_home
from scenarios.polling import until
from spark.kit import session
from spark.kit.toolchain import require

MAKING_S_MAX = 400
TIMEOUT_S = 200

# What the JVM has mapped into its memory, once Spark is up and once it has worked.
USING = """\
import sys
from pathlib import Path
from pyspark import SparkContext
from ottla.pipelines.reading import read_pipeline
from ottla.pipelines.session import start_session

spark = start_session(read_pipeline(Path(sys.argv[1])), is_brief=True)
assert spark.range(3).count() == 3
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
spark.stop()
"""


@pytest.mark.seconds(900)
def test_the_archive_is_made_once_and_used_then(tmp_path: Path) -> None:
    require("java")
    home = spark_home()
    assert home is not None
    archive = archive_of(home)
    assert archive is not None
    until(archive.exists, "the archive that was begun with the tests is not made", MAKING_S_MAX)
    assert archive.stat().st_size > 10_000_000, "of a rehearsal that failed"
    until(lambda: not archive.with_suffix(".making").exists(), "something is left of making it")
    made = archive.stat().st_mtime_ns
    environment = {**os.environ, **session.environment(), "SPARK_SUBMIT_OPTS": ""}
    making = [sys.executable, "-c", session.MAKING_ARCHIVE, str(home), str(archive)]
    subprocess.run(making, env=environment, timeout=TIMEOUT_S, check=True)
    assert archive.stat().st_mtime_ns == made

    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nname: p\nsources:\n  ticks: {rate: 1}\n")
    using = [sys.executable, "-c", USING, str(file)]
    done = subprocess.run(
        using, env=environment, timeout=TIMEOUT_S, capture_output=True, text=True, check=True
    )
    assert archive.name in done.stdout
    assert done.stderr == ""
