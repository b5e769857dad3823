"""Where a broker spends its time under a load: tables by CPU time, a flame graph by wall time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.cases import WARM_UP_MESSAGES
from bench.librdkafka import LoadFailed
from bench.loads import Backlog, Requests, fresh_name
from bench.nodes import Meter, Node, OttlaNode, running, topic
from bench.report import Cell, Sheet

SAMPLES_PER_S: Final = 250
TOP: Final = 25
HOME: Final = Path(".cache/profile")
WARM_UP_S: Final = 1.0
WRITE_TIMEOUT_S: Final = 10.0
FRAME: Final = re.compile(r"^(?P<name>.*) \((?P<place>[^()]*)\)$")

Work = Callable[[Node, str], int]


def _produce(node: Node, name: str) -> int:
    load = Backlog(100, WARM_UP_MESSAGES)
    load.produce(node, name)
    return load.count


def _consume(node: Node, name: str) -> int:
    load = Backlog(100, WARM_UP_MESSAGES)
    load.consume(node, name)
    return load.count


def _requests(node: Node, name: str) -> int:
    return Requests(16, seconds=0, is_cached=True).send_some(node, name, each=500)


WORKS: Final[dict[str, Work]] = {"produce": _produce, "consume": _consume, "requests": _requests}


def profile(work_name: str, *, seconds: int, is_cached: bool) -> list[Sheet]:
    """Runs the work over and over while the broker samples itself by CPU time."""
    raw = HOME.absolute() / f"{work_name}.raw.txt"
    HOME.mkdir(parents=True, exist_ok=True)
    raw.unlink(missing_ok=True)
    with _sampler_in_broker(raw), running(OttlaNode) as node:
        with _load(node, work_name, is_cached=is_cached) as loop, Meter(node) as meter:
            done_before = loop.done
            os.kill(node.pid, signal.SIGUSR2)
            time.sleep(seconds)
            os.kill(node.pid, signal.SIGUSR2)
            done = loop.done - done_before
        _await_file(raw)
    cpu_us = meter.cpu_seconds / max(1, done) * 1e6
    stacks = list(_stacks(raw.read_text()))
    total = sum(count for _, count in stacks)
    title = f"{work_name}: about {cpu_us:.2f} µs of CPU each"
    return [
        _table(f"{title}; by line, self", Counter(_self(stacks)), total),
        _table(f"{title}; by function, with what it calls", Counter(_inclusive(stacks)), total),
    ]


def flame_graph(work_name: str, *, seconds: int, with_native: bool, is_cached: bool) -> Path:
    """py-spy's picture, by wall time."""
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise LoadFailed("py-spy is not installed: make install")
    HOME.mkdir(parents=True, exist_ok=True)
    graph = HOME / f"{work_name}.svg"
    with running(OttlaNode) as node, _load(node, work_name, is_cached=is_cached):
        command = [spy, "record", "--pid", str(node.pid), "--duration", str(seconds)]
        command += ["--rate", str(SAMPLES_PER_S), "--output", str(graph), "--threads"]
        command += ["--native"] if with_native else []
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 60, check=False
        )
    if done.returncode:
        raise LoadFailed(f"py-spy failed (it may need root): {done.stderr.strip()[-500:]}")
    return graph


@contextmanager
def _load(node: Node, work_name: str, *, is_cached: bool) -> Iterator[_Loop]:
    work = WORKS[work_name]
    with topic(node, fresh_name("profile"), is_cached=is_cached) as name:
        _produce(node, name)
        with _Loop(lambda: work(node, name)) as loop:
            time.sleep(WARM_UP_S)
            yield loop


@contextmanager
def _sampler_in_broker(raw: Path) -> Iterator[None]:
    """Brokers that start meanwhile carry bench/sampler in them."""
    before = os.environ.get("PYTHONPATH")
    sampler = str(Path(__file__).parent / "sampler")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sampler, before)))
    os.environ["BENCH_SAMPLES"] = str(raw)
    try:
        yield
    finally:
        del os.environ["BENCH_SAMPLES"], os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _await_file(path: Path) -> None:
    deadline = time.monotonic() + WRITE_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise LoadFailed("the broker did not write its samples")
        time.sleep(0.05)


class _Loop:
    """Work repeated in a thread while `with` lasts."""

    def __init__(self, work: Callable[[], int]) -> None:
        self.done = 0
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.done += self._work()


def _stacks(text: str) -> Iterable[tuple[list[str], int]]:
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        yield [_short(frame) for frame in stack.split(";")], int(count)


def _short(frame: str) -> str:
    match = FRAME.match(frame)
    if match is None:
        return frame
    place = re.sub(r"^.*/(src/|site-packages/|lib/python[0-9.]+/)", "", match["place"])
    return f"{match['name']} ({place})"


def _self(stacks: Iterable[tuple[list[str], int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for frames, count in stacks:
        counts[frames[-1]] += count
    return counts


def _inclusive(stacks: Iterable[tuple[list[str], int]]) -> dict[str, int]:
    """By function, without the line: each once per stack."""
    counts: Counter[str] = Counter()
    for frames, count in stacks:
        for frame in {re.sub(r":\d+\)$", ")", frame) for frame in frames}:
            counts[frame] += count
    return counts


def _table(title: str, counts: Counter[str], total: int) -> Sheet:
    rows = [
        [Cell(name), Cell(f"{count / max(1, total) * 100:.1f}")]
        for name, count in counts.most_common(TOP)
    ]
    return Sheet(title, ("where", "%"), rows)
