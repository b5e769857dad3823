"""What must be on the machine: Java for Spark itself, Maven once for the connector to compare with.

A missing tool skips on a person's machine and fails in CI unless OTTLA_CLIENTS_WITHOUT waives it,
as in tests/clients. Jars go to .cache/spark, keyed by the list that asks for them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache" / "spark"
POM = Path(__file__).with_name("connector.pom.xml")
TIMEOUT_S = 240
INSTALL = "install a JDK (17 or newer) and Maven (Debian: openjdk-17-jdk-headless maven)"


def missing(*commands: str) -> str | None:
    """One line for a person who lacks one of the commands; None when all are there."""
    if "java" in os.environ.get("OTTLA_CLIENTS_WITHOUT", "").split(","):
        return "java is waived by OTTLA_CLIENTS_WITHOUT"
    absent = [command for command in commands if shutil.which(command) is None]
    return f"{', '.join(absent)} not found; to run these tests: {INSTALL}" if absent else None


def require(*commands: str) -> None:
    reason = missing(*commands)
    if reason is None:
        return
    if os.environ.get("CI") == "true" and "waived" not in reason:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Parallel pytest workers do not make the same thing twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def connector_jars() -> list[Path]:
    """The jars of Spark's connector for Kafka, fetched by the first who asks; [] without Maven."""
    key = hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
    directory = CACHE / f"connector-{key}"
    with locked(CACHE / "connector.lock"):
        if not directory.exists():
            if missing("java", "mvn") is not None:
                return []
            _fetch_jars(directory)
    return sorted(directory.glob("*.jar"))


def _fetch_jars(directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        shutil.copy(POM, Path(scratch, "pom.xml"))
        done = subprocess.run(
            ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"mvn failed:\n{(done.stdout + done.stderr)[-3000:]}")
        Path(scratch, "lib").rename(directory)
