"""Settings of a pipeline's Spark, passwords among them, as other users of the machine see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scenarios.polling import until
from spark.kit import session
from spark.kit.pipeline_runs import PATIENCE_S, CommandLine

KEY, STORE = "wJalrXUtnFEMI=#:! K7MDENG\\", "store pass'word\\9"

FILE = f"""\
version: 1
name: ticking
sources:
  ticks: {{rate: 50}}
views:
  seen: {{python: looking:looking}}
sinks:
  out: {{from: seen, files: out/, format: json}}
spark:
  spark.hadoop.fs.s3a.secret.key: {json.dumps(KEY)}
  spark.ssl.keyPassword: {json.dumps(KEY)}
  spark.driver.extraJavaOptions: {json.dumps(f'-Dmy.store="{STORE.replace(chr(92), chr(92) * 2)}"')}
"""

# Writes down what the JVM has got, and lasts until it is killed.
LOOKING = """\
import json, time
from pathlib import Path

HERE = Path(__file__).parent

def looking(spark, ticks):
    found = [
        spark.conf.get("spark.hadoop.fs.s3a.secret.key"),
        spark._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
        spark._jvm.java.lang.System.getProperty("my.store"),
        spark.conf.get("spark.hadoop.mine", "none"),
        spark.conf.get("spark.hadoop.theirs", "none"),
    ]
    (HERE / "found.json").write_text(json.dumps(found))

    def wait(batches):
        for batch in batches:
            (HERE / "came").touch()
            time.sleep(600)
            yield batch

    return ticks.mapInArrow(wait, "timestamp timestamp, value bigint")
"""


def family_of(child: CommandLine) -> list[psutil.Process]:
    owner = psutil.Process(child.pid)
    return [owner, *owner.children(recursive=True)]


def shown_by(process: psutil.Process) -> str:
    """What `ps` and the process's environment tell."""
    try:
        told = [Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    except OSError:
        return ""
    return b"\0".join(told).decode(errors="replace")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pipeline's directory for temporary files, and its own beside it."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    (tmp_path / "looking.py").write_text(LOOKING)
    return directory


def ottla_run(directory: Path, more: str = "") -> subprocess.Popen[str]:
    (directory / "p.yaml").write_text(FILE + more)
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from ottla.cli.main import run; run()",
            "pipeline",
            "run",
            "p.yaml",
        ],
        cwd=directory,
        env={**os.environ, **session.environment()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def passwords_in(directory: Path) -> list[Path]:
    files = [file for file in directory.rglob("*") if file.is_file()]
    return [file for file in files if "K7MDENG" in file.read_text(errors="replace")]


@pytest.mark.seconds(300)
def test_passwords_of_the_file_are_in_no_process_list(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.properties"
    own.write_text("spark.hadoop.mine=kept\nspark.ssl.keyPassword=other\\")
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        f"--properties-file {own} --conf spark.hadoop.theirs=kept pyspark-shell",
    )
    (tmp_path / "p.yaml").write_text(FILE)
    betrayed: set[str] = set()
    names: set[str] = set()
    modes: set[int] = set()

    def has_begun() -> bool:
        child.check()
        for process in family_of(child):
            told = shown_by(process)
            names.update(name for name in ("SparkSubmit", "pyspark.daemon") if name in told)
            # Parts of them too: in a shell's line signs are escaped.
            betrayed.update(told for secret in ("wJalrXUtn", "K7MDENG", "pass'w") if secret in told)
        modes.update(file.stat().st_mode & 0o777 for file in temporary.rglob("*.properties"))
        return (tmp_path / "came").exists()

    with CommandLine(["pipeline", "run", str(tmp_path / "p.yaml")], tmp_path) as child:
        until(has_begun, "no batch has begun", PATIENCE_S)
        assert not betrayed
        assert names == {"SparkSubmit", "pyspark.daemon"}
        assert modes == {0o600}
        found = json.loads((tmp_path / "found.json").read_text())
        assert found == [KEY, KEY, STORE, "kept", "kept"]
        assert passwords_in(temporary) == []


@pytest.mark.seconds(300)
def test_a_start_that_fails_leaves_no_passwords(tmp_path: Path, temporary: Path) -> None:
    with ottla_run(tmp_path, "  spark.driver.memory: much\n") as process:
        told = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 1, told
    assert "Spark does not start on local[*]" in told
    assert "K7MDENG" not in told
    assert passwords_in(temporary) == []


@pytest.mark.seconds(300)
def test_a_start_that_is_told_to_stop_leaves_no_passwords(tmp_path: Path, temporary: Path) -> None:
    with ottla_run(tmp_path) as process:
        until(lambda: passwords_in(temporary), "nothing is handed to Spark", PATIENCE_S)
        process.terminate()
        told = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, told
    assert "K7MDENG" not in told
    assert passwords_in(temporary) == []
    assert not (tmp_path / "came").exists()
