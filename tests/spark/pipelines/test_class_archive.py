"""Java's archive of Spark's classes, made as after a first command and used by the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipelines.class_archive import SWITCH, archive_of
from ottla.spark.spark_home import spark_home
from spark.kit import session
from spark.kit.toolchain import require

TIMEOUT_S = 280

# As in the background, but not last in line for a core.
MAKING = """\
import sys
from pathlib import Path
from ottla.pipelines.class_archive import make

make(Path(sys.argv[1]), Path(sys.argv[2]))
"""

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


@pytest.mark.seconds(600)
def test_the_archive_is_made_once_and_used_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("java")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SWITCH, raising=False)
    home = spark_home()
    assert home is not None
    archive = archive_of(home)
    assert archive is not None
    environment = {**os.environ, **session.environment(), SWITCH: "", "SPARK_SUBMIT_OPTS": ""}

    making = [sys.executable, "-c", MAKING, str(home), str(archive)]
    subprocess.run(making, env=environment, timeout=TIMEOUT_S, check=True)
    assert archive.stat().st_size > 10_000_000
    left = {path.name for path in archive.parent.iterdir()}
    assert left == {home.name, archive.name, archive.with_suffix(".lock").name}
    made = archive.stat().st_mtime_ns
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
