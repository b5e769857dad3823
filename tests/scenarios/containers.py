"""Containers as a test runs them: their own command and variables, as processes of this machine.

Each has an address of the loopback net for its own, so that all have the same ports, as in their
own networks; the test moves them to ones that are free.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ottla.testing.ports import free_ports
from scenarios.polling import until

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 90.0
DATA_DIR = "/var/lib/ottla"
NAMESPACE = "queues"
FIXED = {"metadata.namespace": NAMESPACE}
INDEX_LABEL = "metadata.labels['apps.kubernetes.io/pod-index']"


class Container(NamedTuple):
    name: str
    arguments: list[str]
    environment: dict[str, str]


class Probe(NamedTuple):
    port: int
    path: str


def image_parts() -> tuple[list[str], dict[str, str]]:
    """Entry point and variables that every container of the Dockerfile's image has."""
    text = (ROOT / "Dockerfile").read_text()
    (entry_point,) = re.findall(r"^ENTRYPOINT (\[.*\])", text, re.MULTILINE)
    variables = dict(re.findall(r"\b(OTTLA_[A-Z_]+)=(\S+)", text))
    return json.loads(entry_point), variables


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` as the kubelet reads it: what is not there stays as it is."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)


def pods_of(
    stateful_set: Mapping[str, Any], config: Mapping[str, Mapping[str, str]]
) -> list[Container]:
    """The containers that a StatefulSet would start, with what the kubelet gives them."""
    spec = stateful_set["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    first = spec["ordinals"]["start"]
    made = []
    for ordinal in range(first, first + spec["replicas"]):
        name = f"{stateful_set['metadata']['name']}-{ordinal}"
        fields = {
            **FIXED,
            "metadata.name": name,
            "spec.nodeName": f"host-of-{name}",
            INDEX_LABEL: str(ordinal),
        }
        variables: dict[str, str] = {}
        for each in container["env"]:
            source = each.get("valueFrom", {})
            if "fieldRef" in source:
                value = fields[source["fieldRef"]["fieldPath"]]
            elif "configMapKeyRef" in source:
                value = config[source["configMapKeyRef"]["name"]][source["configMapKeyRef"]["key"]]
            else:
                value = expanded(each["value"], variables)
            variables[each["name"]] = value
        made.append(
            Container(name, [expanded(each, variables) for each in container["args"]], variables)
        )
    return made


class Machine:
    """Where containers run as processes: their files below a directory, their ports moved."""

    def __init__(self, path: Path, ports: Sequence[int], names: Mapping[str, str]) -> None:
        self.path = path
        self._moved = dict(zip(ports, free_ports(len(ports)), strict=True))
        # Longest first: one may be a part of another.
        self._names = sorted(names.items(), key=lambda item: -len(item[0]))
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def port(self, theirs: int) -> int:
        return self._moved[theirs]

    def log(self, name: str) -> str:
        return (self.path / f"{name}.log").read_text()

    def _here(self, text: str, address: str) -> str:
        for name, host in self._names:
            text = text.replace(name, host)
        text = re.sub(r"\b0\.0\.0\.0\b|\blocalhost\b", address, text)
        return re.sub(
            r"(?<=:)\d+\b", lambda found: str(self._moved.get(int(found[0]), found[0])), text
        )

    def data(self, name: str) -> Path:
        return self.path / name

    def start(self, container: Container, address: str) -> None:
        entry_point, variables = image_parts()
        variables |= container.environment
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        arguments = [self._here(each, address) for each in (*entry_point, *container.arguments)]
        command = [each.replace(DATA_DIR, str(self.data(container.name))) for each in arguments]
        self.data(container.name).mkdir(exist_ok=True)
        with (self.path / f"{container.name}.log").open("ab") as log:
            self._running[container.name] = subprocess.Popen(
                command,
                cwd=self.data(container.name),
                env={
                    "PATH": path,
                    **{key: self._here(each, address) for key, each in variables.items()},
                },
                stdout=log,
                stderr=log,
            )

    def stop(self, name: str, kind: signal.Signals = signal.SIGTERM) -> int:
        process = self._running.pop(name)
        process.send_signal(kind)
        return process.wait(PATIENCE_S)

    def end_of(self, name: str) -> int:
        """The exit code of one that ends by itself."""
        return self._running[name].wait(PATIENCE_S)

    def probe(self, address: str, port: int, path: str) -> int:
        """The answer's status; 0 where nobody answers."""
        try:
            url = f"http://{address}:{self.port(port)}{path}"
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def await_ready(
        self, container: Container, address: str, probe: Probe, starts: int = 1
    ) -> None:
        """One that ends is started again, as its keeper would do, up to so many times in all."""
        ends = 0

        def is_ready() -> bool:
            nonlocal ends
            if self._running[container.name].poll() is not None:
                ends += 1
                assert ends < starts, self.log(container.name)
                self.start(container, address)
            return self.probe(address, *probe) == 200

        until(is_ready, f"{container.name} is not ready", PATIENCE_S)

    def close(self) -> None:
        for name in list(self._running):
            self.stop(name, signal.SIGKILL)


@contextmanager
def machine(path: Path, ports: Sequence[int], names: Mapping[str, str]) -> Iterator[Machine]:
    made = Machine(path, ports, names)
    try:
        yield made
    finally:
        made.close()
