"""A real PostgreSQL of one's own, in a directory that is thrown away with it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark.kit.secured_kafka import free_ports

USER = "ottla"
PASSWORD = "s3cret-Pa55"
DATABASE = "shop"
TIMEOUT_S = 60
INSTALL = "install PostgreSQL (Debian: postgresql)"
# Durability is not what these tests are about.
SETTINGS = {"fsync": "off", "unix_socket_directories": "", "listen_addresses": "127.0.0.1"}


def programs() -> Path | None:
    """Where initdb and postgres are; Debian keeps them out of the path."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: p.parts[-3])
    return found[-1].parent if found else None


def require() -> Path:
    found = programs()
    if found is not None:
        return found
    reason = f"initdb not found; to run these tests: {INSTALL}"
    waived = "postgres" in os.environ.get("OTTLA_TEST_WITHOUT", "").split(",")
    if os.environ.get("CI") == "true" and not waived:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Postgres:
    """One server with one database, asked through psql."""

    def __init__(self, bin: Path, port: int) -> None:
        self._bin = bin
        self.port = port
        self.url = f"jdbc:postgresql://127.0.0.1:{port}/{DATABASE}"

    def rows(self, sql: str) -> list[str]:
        """What psql prints: a line per row, columns with | between."""
        address = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{DATABASE}"
        command = [str(self._bin / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, address]
        return _run(command).splitlines()


@contextmanager
def running() -> Iterator[Postgres]:
    """From here to the end of `with`."""
    bin = require()
    # Not in pytest's directory, into which root lets nobody else.
    scratch = tempfile.TemporaryDirectory(prefix="ottla-postgres-")
    with scratch as directory, _running(bin, Path(directory)) as server:
        yield server


@contextmanager
def _running(bin: Path, directory: Path) -> Iterator[Postgres]:
    data, word = directory / "data", directory / "password"
    word.write_text(PASSWORD)
    as_user = _as_other_user(directory)
    initdb = ["-D", str(data), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(word), "-N"]
    _run([*as_user, str(bin / "initdb"), *initdb, "-E", "UTF8", "--locale", "C"])
    (port,) = free_ports(1)
    options = " ".join(f"-c {name}={value or chr(39) * 2}" for name, value in SETTINGS.items())
    control = [*as_user, str(bin / "pg_ctl"), "-D", str(data), "-w", "-t", str(TIMEOUT_S)]
    _run([*control, "-l", str(directory / "log"), "-o", f"-p {port} {options}", "start"])
    try:
        address = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"
        _run([str(bin / "psql"), "-Xq", "-c", f"CREATE DATABASE {DATABASE}", address])
        yield Postgres(bin, port)
    finally:
        _run([*control, "-m", "immediate", "stop"])


def _as_other_user(directory: Path) -> list[str]:
    """PostgreSQL refuses to run as root; its package has made a user for it."""
    if os.geteuid() != 0:
        return []
    other = pwd.getpwnam("postgres")
    os.chown(directory, other.pw_uid, other.pw_gid)
    os.chown(directory / "password", other.pw_uid, other.pw_gid)
    return ["setpriv", f"--reuid={other.pw_uid}", f"--regid={other.pw_gid}", "--clear-groups", "--"]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd="/", check=False
    )
    assert done.returncode == 0, f"{command[:6]}: {(done.stdout + done.stderr)[-2000:]}"
    return done.stdout
