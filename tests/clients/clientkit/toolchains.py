"""Builds the programs that are not Python into .cache/clients, once per content of their sources.

The registries' own caches (Maven's, Go's, npm's) are used as they are found, warm or empty. A
lock file keeps parallel pytest workers from building the same thing twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parents[1] / "programs"
CACHE = ROOT / ".cache" / "clients"
BUILD_TIMEOUT_S = 240


class BuildFailed(Exception):
    pass


@dataclass(frozen=True)
class Toolchain:
    """What a program needs on the machine, what to tell a person who lacks it, and its build."""

    name: str
    commands: tuple[str, ...]
    install: str
    build: Callable[[], list[str]]

    def missing(self) -> str | None:
        absent = [command for command in self.commands if shutil.which(command) is None]
        return (
            f"{', '.join(absent)} not found; to run these tests: {self.install}" if absent else None
        )


def is_waived(toolchain: Toolchain) -> bool:
    return toolchain.name in os.environ.get("OTTLA_TEST_WITHOUT", "").split(",")


def is_optional(toolchain: Toolchain) -> bool:
    """Whether tests may do without it: it is waived, or missing on a person's machine."""
    is_missing = toolchain.missing() is not None and os.environ.get("CI") != "true"
    return is_missing or is_waived(toolchain)


def require(toolchain: Toolchain) -> None:
    """A missing toolchain skips on a person's machine and fails in CI unless it is waived."""
    if is_waived(toolchain):
        pytest.skip(f"{toolchain.name} is waived by OTTLA_TEST_WITHOUT")
    missing = toolchain.missing()
    if missing is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def run(command: list[str], directory: Path, **environment: str) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{command} took more than {BUILD_TIMEOUT_S} s") from None
    if done.returncode:
        raise BuildFailed(f"{command} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


@contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fresh_copy(name: str, build: Callable[[Path], None]) -> Path:
    """A directory with the sources of a program, built; reused while the sources are the same."""
    source = PROGRAMS / name
    digest = hashlib.sha256()
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
    target = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    with locked(CACHE / f"{name}.lock"):
        if not (target / ".built").exists():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
            build(target)
            (target / ".built").touch()
    return target


def python(program: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(PROGRAMS / "python" / program)]


def build_java() -> list[str]:
    def build(directory: Path) -> None:
        run(["mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"], directory)
        sources = [str(path) for path in sorted((directory / "src").glob("*.java"))]
        run(["javac", "-Xlint:all", "-cp", "lib/*", "-d", "classes", *sources], directory)

    directory = fresh_copy("java", build)
    heap = ["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    return ["java", *heap, "-cp", f"{directory}/classes:{directory}/lib/*", "Main"]


def build_go() -> list[str]:
    def build(directory: Path) -> None:
        run(["go", "build", "-mod=readonly", "-o", "client", "."], directory, GOFLAGS="")

    return [str(fresh_copy("go", build) / "client")]


def build_node() -> list[str]:
    def build(directory: Path) -> None:
        flags = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        run(["npm", "install", *flags], directory)

    return ["node", str(fresh_copy("node", build) / "main.js")]


PYTHON = Toolchain("python", (), "", list)
JAVA = Toolchain(
    "java",
    ("java", "javac", "mvn"),
    "install a JDK (17 or newer) and Maven (Debian: openjdk-17-jdk-headless maven)",
    build_java,
)
GO = Toolchain("go", ("go",), "install Go 1.26 or newer", build_go)
NODE = Toolchain("node", ("node", "npm"), "install Node.js 20 or newer with npm", build_node)
KCAT = Toolchain("kcat", ("kcat",), "install kcat (Debian: apt-get install kcat)", lambda: ["kcat"])
