"""A broker in a process of its own, on a free port, that ends when its owner does."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from ottla.testing.homes import Home
from ottla.testing.ports import free_port_of_workers
from ottla.testing.topics import create_topic

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
LOG_TAIL_CHARS: Final = 16_000
READY_LINE_BYTES_MAX: Final = 65_536

Value: TypeAlias = str | int | float | bool | os.PathLike[str]
Setting: TypeAlias = Value | Sequence[Value]

# A group of one test member need not wait for more members to come.
TEST_SETTINGS: Final[Mapping[str, Setting]] = {"group.initial.rebalance.delay.ms": 0}


class BrokerFailed(Exception):
    """The broker did not start or did not stop; the message ends with its log."""


class Broker:
    """A broker that `with` starts and stops. Settings are Kafka's names with their values.

    Without `data_dir` the data lives in a temporary directory that goes when the broker stops for
    good (`close`, or the end of `with`); `stop`, `kill` and `restart` keep it. With `workers` it is
    as many brokers, which share the port that `bootstrap` names.
    """

    def __init__(
        self,
        settings: Mapping[str, Setting] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        cluster_id: str | None = None,
        workers: int | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        self.settings = {**TEST_SETTINGS, **(settings or {})}
        self._log_dirs = _absolute(self.settings.pop("log.dir", self.settings.get("log.dirs")))
        self._data_dir = _chosen(data_dir, self._log_dirs)
        self._port = port
        self._cluster_id = cluster_id
        self._workers = workers
        if port and "listeners" in self.settings:
            raise BrokerFailed("port and listeners both say where to listen; give one of them")
        self._ready_timeout_s = ready_timeout_s
        self._home: Home | None = None
        self._is_wanted = False
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses: dict[str, Any] = {}
        self._final_log = ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """`host:port` for a client's `bootstrap.servers`."""
        return str(self._addresses["bootstrap"])

    @property
    def http(self) -> str:
        """The base URL of `/healthz`, `/readyz` and `/metrics`."""
        if not self._addresses["http"]:
            raise BrokerFailed("the broker was started without http.listener")
        return f"http://{self._addresses['http']}"

    @property
    def data_dir(self) -> Path:
        return self._data_dir or self._own_home() / "data"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailed("the broker has not been started")
        return self._process.pid

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` gives it: negative is the signal that ended the process."""
        return None if self._process is None else self._process.poll()

    def log_text(self) -> str:
        """Everything the broker has logged so far, over all its restarts."""
        if self._home is None:
            return self._final_log
        return (self._home.path / "broker.log").read_text(errors="replace")

    def check_alive(self) -> None:
        """BrokerFailed if the process has ended and nobody had asked for that."""
        if self._is_wanted and not self.is_running:
            raise BrokerFailed(self._failure("has died"))

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, Setting] | None = None
    ) -> None:
        texts = {key: _text(value) for key, value in (configs or {}).items()}
        create_topic(self.bootstrap, name, partitions, texts)

    def start(self) -> None:
        """Returns when the broker accepts requests; raises BrokerFailed if it does not."""
        if self.is_running:
            raise BrokerFailed("the broker is running already")
        if self._home is None:
            self._home = Home()
        if self._workers is not None and not self._port and "listeners" not in self.settings:
            self._port = free_port_of_workers(self._workers)
        ready_read, ready_write = os.pipe()
        try:
            try:
                self._process = self._spawn(ready_write)
                self._home.note_pid(self._process.pid)
            finally:
                os.close(ready_write)
            self._addresses = self._await_ready(ready_read)
        finally:
            os.close(ready_read)
        self._port = int(self.bootstrap.rpartition(":")[2])
        self._is_wanted = True

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Asks for a clean stop and waits for it; returns the exit code."""
        if self._process is None:
            raise BrokerFailed("the broker has not been started")
        self._is_wanted = False
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise BrokerFailed(self._failure("did not stop when asked")) from None
        self._release_stdin()
        return self._process.wait()

    def kill(self) -> None:
        """Ends the process as a crash would (SIGKILL)."""
        self._is_wanted = False
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._release_stdin()

    def restart(self) -> None:
        """Stops if need be and starts again, with the same port and data."""
        if self.is_running:
            self.stop()
        self.start()

    def close(self) -> None:
        """Stops for good and removes what belonged to this broker alone."""
        try:
            if self.is_running:
                self.stop()
        finally:
            self.kill()
            if self._home is not None:
                self._final_log = self.log_text()
                self._home.remove()
                self._home = None

    def _own_home(self) -> Path:
        if self._home is None:
            raise BrokerFailed("the broker has not been started, or is closed")
        return self._home.path

    def _command(self, ready_fd: int) -> list[str]:
        command = [sys.executable, "-m", "ottla", "start"]
        given = {"http.listener": "127.0.0.1:0", **self.settings}
        given["listeners"] = self._listeners()
        given["log.dirs"] = self._log_dirs or (self.data_dir,)
        command += ["--ready-fd", str(ready_fd), "--die-with-parent"]
        if self._workers is not None:
            command += ["--workers", str(self._workers)]
        if self._cluster_id is not None:
            command += ["--cluster-id", self._cluster_id]
        for name, value in given.items():
            command += ["--set", f"{name}={_text(value)}"]
        return command

    def _listeners(self) -> str:
        """As given; where the first port was any, it stays what it was after a restart."""
        text = _text(self.settings.get("listeners", f"127.0.0.1:{self._port}"))
        first, comma, rest = text.partition(",")
        if first.strip().endswith(":0"):
            first = f"{first.strip()[:-1]}{self._port}"
        return f"{first}{comma}{rest}"

    def _spawn(self, ready_fd: int) -> subprocess.Popen[bytes]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OTTLA_")
        }
        with (self._own_home() / "broker.log").open("ab") as log:
            return subprocess.Popen(
                self._command(ready_fd),
                # The broker also ends when this pipe does: that is how it sees its parent die.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._own_home(),
                pass_fds=(ready_fd,),
            )

    def _await_ready(self, ready_fd: int) -> dict[str, Any]:
        """The broker writes one line of JSON when it is ready, and closes the pipe if it ends."""
        deadline = time.monotonic() + self._ready_timeout_s
        poller = select.poll()
        poller.register(ready_fd, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            if not poller.poll(left_ms):
                raise BrokerFailed(self._failure(f"was not ready in {self._ready_timeout_s:g} s"))
            received = os.read(ready_fd, READY_LINE_BYTES_MAX)
            if not received:
                self.kill()
                raise BrokerFailed(self._failure("ended before it was ready"))
            line += received
        addresses: dict[str, Any] = json.loads(line)
        return addresses

    def _failure(self, what: str) -> str:
        log = self.log_text()[-LOG_TAIL_CHARS:].strip() or "(empty)"
        return f"the broker {what} (exit code {self.exit_code}); its log:\n{log}"

    def _release_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


def _absolute(directories: Setting | None) -> tuple[Path, ...]:
    """`log.dirs` as the caller means them: the broker works in a directory of its own."""
    texts = _text(directories or "").split(",")
    return tuple(Path(text.strip()).absolute() for text in texts if text.strip())


def _chosen(data_dir: str | os.PathLike[str] | None, log_dirs: Sequence[Path]) -> Path | None:
    """The directory that the caller has named, if any."""
    if data_dir is None:
        return log_dirs[0] if log_dirs else None
    named = Path(data_dir).absolute()
    if log_dirs and named not in log_dirs:
        listed = ", ".join(map(str, log_dirs))
        raise BrokerFailed(f"data_dir is {named}, which is not among log.dirs ({listed})")
    return named


def _text(value: Setting) -> str:
    """As a properties file has it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
