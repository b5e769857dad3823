"""Machines as the pages about operating know them, on which a test types what the pages say.

Host N is 10.0.0.N on the pages and 127.0.1.N here, with directories of its own for /etc/ottla,
/var/lib/ottla and its disks. Its `systemctl` starts and stops a real broker by the settings in
/etc/ottla/ottla.properties; the test can kill it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.testing.ports import free_ports

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 120.0
PORTS = (9092, 9093, 9644)
FENCE = re.compile(r"^```bash\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"# on node (\d+)")
SYSTEMCTL = """#!{python} -SE
import socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect({path!r})
door.sendall(" ".join(sys.argv[1:]).encode())
door.shutdown(socket.SHUT_WR)
answer = b"".join(iter(lambda: door.recv(4096), b"")).decode()
sys.exit(answer or 0)
"""


class Typed(NamedTuple):
    """A block of a page, and the host on which it is to be typed."""

    host: int
    code: str


def typed_in(page: str, heading: str | None) -> list[Typed]:
    """The blocks below a heading, or before all, that say where they are to be typed."""
    for tool in ("curl", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool}, which the pages use, is not installed")
    text = (ROOT / "docs" / page).read_text()
    rest = text
    if heading is not None:
        _, found, rest = text.partition(f"\n## {heading}\n")
        assert found, f"{page} has no heading {heading}"
    blocks = [match["code"] for match in FENCE.finditer(rest.partition("\n## ")[0])]
    return [Typed(int(place[1]), code) for code in blocks if (place := PLACE.match(code))]


class Host:
    def __init__(self, site: Site, number: int) -> None:
        self.number = number
        self.address = f"127.0.1.{number}"
        self.root = site.path / f"host-{number}"
        self.data = self.root / "var/lib/ottla/data"
        self._site = site
        self._process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        for place in ("bin", "etc/ottla", "var/lib/ottla"):
            (self.root / place).mkdir(parents=True)
        # The path of a socket has a hundred characters at most.
        self._door = _Door(f"{site.short}/{number}", self._systemctl)
        shim = self.root / "bin" / "systemctl"
        shim.write_text(SYSTEMCTL.format(python=sys.executable, path=self._door.path))
        shim.chmod(0o755)

    @property
    def bootstrap(self) -> str:
        return self.here(f"10.0.0.{self.number}:9092")

    @property
    def settings(self) -> Path:
        return self.root / "etc/ottla/ottla.properties"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return (self.root / "log").read_text()

    def here(self, text: str) -> str:
        text = text.replace("10.0.0.", "127.0.1.")
        text = re.sub(r"(?<=:)\d+\b", lambda port: self._site.ports.get(port[0], port[0]), text)
        text = text.replace("/mnt/backup", f"{self._site.path}/backup")
        return re.sub(r"(?<![\w/.-])/(?=etc/ottla|var/lib/ottla|disk-)", f"{self.root}/", text)

    def configure(self, settings: Mapping[str, object]) -> None:
        lines = (f"{name}={self.here(str(value))}\n" for name, value in settings.items())
        self.settings.write_text("".join(lines))

    def type(self, code: str) -> str:
        """What it said; it must have ended well."""
        clean = {name: text for name, text in os.environ.items() if not name.startswith("OTTLA_")}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here(code)],
            cwd=self.root,
            env={
                **clean,
                "PATH": f"{self.root}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "OTTLA_BOOTSTRAP": self.bootstrap,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        logs = "\n".join(f"{each.number}: {each.log()}" for each in self._site if each.has_log)
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}\n{logs}"
        return done.stdout

    @property
    def has_log(self) -> bool:
        return (self.root / "log").exists()

    def _systemctl(self, words: str) -> str:
        verb, _, unit = words.partition(" ")
        if unit != "ottla" or verb not in ("start", "stop", "restart"):
            return f"this systemctl does not know: {words}"
        if verb in ("stop", "restart"):
            self.end(signal.SIGTERM)
        if verb in ("start", "restart"):
            self._start()
        return ""

    def _start(self) -> None:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("OTTLA_")}
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ottla", "start", str(self.settings)],
                cwd=self.root,
                env={**clean, **self.environment},
                stdout=log,
                stderr=log,
            )

    def end(self, kind: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(kind)
            self._process.wait(PATIENCE_S)
            self._process = None

    def lose(self, *places: str) -> None:
        """The machine goes, with these of its directories."""
        self.end(signal.SIGKILL)
        for place in places:
            shutil.rmtree(self.here(place))

    def close(self) -> None:
        self.end(signal.SIGKILL)
        self._door.close()


class _Door:
    """Takes what the host's systemctl is told, and answers with what is wrong."""

    def __init__(self, path: str, take: Callable[[str], str]) -> None:
        self.path = path

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = take(self.rfile.read().decode())
                self.wfile.write(answer.encode())

        self._server = socketserver.UnixStreamServer(path, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Site:
    """Hosts 1 and on, that reach each other."""

    def __init__(self, path: Path, short: str, count: int) -> None:
        self.path, self.short = path, short
        (path / "backup").mkdir()
        self.ports = dict(zip(map(str, PORTS), map(str, free_ports(len(PORTS))), strict=True))
        self._hosts = {number: Host(self, number) for number in range(1, count + 1)}

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __getitem__(self, number: int) -> Host:
        return self._hosts[number]

    @property
    def bootstrap(self) -> str:
        return ",".join(host.bootstrap for host in self)

    def type(self, typed: Typed) -> str:
        return self[typed.host].type(typed.code)

    def close(self) -> None:
        for host in self:
            host.close()


@contextmanager
def site(path: Path, count: int = 3) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="hosts-") as short:
        made = Site(path, short, count)
        try:
            yield made
        finally:
            made.close()
