"""What must be on the machine: Java for Spark itself, Maven once for jars that tests use with it.

A missing tool skips on a person's machine and fails in CI unless OTTLA_TEST_WITHOUT waives it,
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
HERE = Path(__file__).parent
TIMEOUT_S = 240
INSTALL = "install a JDK (17 or newer) and Maven (Debian: openjdk-17-jdk-headless maven)"


def missing(*commands: str) -> str | None:
    """One line for a person who lacks one of the commands; None when all are there."""
    if "java" in os.environ.get("OTTLA_TEST_WITHOUT", "").split(","):
        return "java is waived by OTTLA_TEST_WITHOUT"
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
    """The jars of Spark's connector for Kafka."""
    return fetched_jars("connector")


def jdbc_jars() -> list[Path]:
    """The driver of PostgreSQL."""
    return fetched_jars("jdbc")


def s3_jars() -> list[Path]:
    """Hadoop's file system for S3."""
    return fetched_jars("s3")


def delta_jars(spark_version: str) -> list[Path]:
    """Delta for this Spark; [] also where none is known that runs on it."""
    name = f"delta-{'.'.join(spark_version.split('.')[:2])}"
    return fetched_jars(name) if (HERE / f"{name}.pom.xml").exists() else []


def fetched_jars(name: str) -> list[Path]:
    """What `name`.pom.xml lists, fetched by the first who asks; [] without Maven."""
    pom = HERE / f"{name}.pom.xml"
    key = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    directory = CACHE / f"{name}-{key}"
    with locked(CACHE / f"{name}.lock"):
        if not directory.exists():
            if missing("java", "mvn") is not None:
                return []
            _fetch_jars(pom, directory)
    return sorted(directory.glob("*.jar"))


def _fetch_jars(pom: Path, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        shutil.copy(pom, Path(scratch, "pom.xml"))
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
