"""Where a broker spends its time under a load: py-spy's samples as a table and a flame graph."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
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
# The other threads mostly wait, which py-spy cannot always tell from work.
MAIN_THREAD: Final = "MainThread"
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


def profile(
    work_name: str, *, seconds: int, with_native: bool, is_cached: bool
) -> tuple[list[Sheet], Path]:
    """Runs the work over and over while py-spy looks; returns the tables and the flame graph."""
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise LoadFailed("py-spy is not installed: make install")
    HOME.mkdir(parents=True, exist_ok=True)
    raw, graph = HOME / f"{work_name}.raw.txt", HOME / f"{work_name}.svg"
    work = WORKS[work_name]
    with (
        running(OttlaNode) as node,
        topic(node, fresh_name("profile"), is_cached=is_cached) as name,
    ):
        _produce(node, name)
        with _Loop(lambda: work(node, name)) as loop, Meter(node) as meter:
            for form, target in (("raw", raw), ("flamegraph", graph)):
                _record(spy, node.pid, form, target, seconds, with_native=with_native)
        cpu_us = meter.cpu_seconds / max(1, loop.done) * 1e6
    stacks = [stack for stack in _stacks(raw.read_text()) if MAIN_THREAD in stack[0][0]]
    total = sum(count for _, count in stacks)
    title = f"{work_name}: {cpu_us:.2f} µs of CPU each, disturbed by py-spy; the loop's thread"
    return [
        _table(f"{title}; self", Counter(_self(stacks)), total),
        _table(f"{work_name}; with what it calls", Counter(_inclusive(stacks)), total),
    ], graph


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


def _record(
    spy: str, pid: int, form: str, target: Path, seconds: int, *, with_native: bool
) -> None:
    command = [spy, "record", "--pid", str(pid), "--duration", str(seconds), "--format", form]
    command += ["--rate", str(SAMPLES_PER_S), "--output", str(target), "--threads"]
    command += ["--native"] if with_native else []
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    if done.returncode:
        raise LoadFailed(f"py-spy failed (it may need root): {done.stderr.strip()[-500:]}")


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
