"""A pipeline at work, in about a minute and a half: orders come in, totals come out, and a picture.

Starts a broker, sends orders for a minute (some late, some broken), runs the pipeline of
examples/orders-per-minute on Spark, shows its batches and totals as they come, holds the totals
against what was sent, and leaves demo.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from confluent_kafka import Consumer
from demo_picture import Batch, Run, draw
from demo_truth import Key, Total, Truth, differences

from ottla.testing import Broker

ROOT: Final = Path(__file__).parent.parent
EXAMPLE: Final = ROOT / "examples" / "orders-per-minute"
TOPICS: Final = {"orders": 3, "orders-per-minute": 1, "orders.dead": 1}
FLOW: Final = "out"
RATE: Final = 1000
# Order times run thirty times faster than the clock, so that minutes close while we watch.
PER_MINUTE: Final = 2000
SECONDS: Final = 60
# From the start: to the first order, to the last one on a slow machine, and to the last total. The
# rest of the three minutes is for the end.
FIRST_ORDER_S: Final = 80.0
LAST_ORDER_S: Final = 110.0
DEADLINE_S: Final = 155.0
STOP_TIMEOUT_S: Final = 20.0
SIGN_OF_LIFE_S: Final = 2.0
LINES_MAX: Final = 10_000


class DemoFailed(Exception):
    """One line for the person who watches."""


class Generator:
    """Sends orders from a thread of its own, and keeps count of them."""

    def __init__(self, bootstrap: str, seconds: int, started: float) -> None:
        self.truth = Truth()
        self.ticks: list[tuple[float, int]] = []
        self.failure: BaseException | None = None
        # Only then is the watermark where it sorts them out, whatever Spark's batches are.
        self.too_late_may_come = threading.Event()
        self._started = started
        self._count = seconds * RATE
        self._stop = threading.Event()
        self._orders = load_generator()
        self._sender = self._orders.Sender(bootstrap, "orders")
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def is_done(self) -> bool:
        return self.is_started and not self._thread.is_alive()

    def send_no_more(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        self.send_no_more()
        if self.is_started:
            self._thread.join(STOP_TIMEOUT_S)
        self._sender.close()

    def _run(self) -> None:
        try:
            self._send_all()
        # SystemExit is the sender's word for a broker that does not answer.
        except (Exception, SystemExit) as failure:  # kept: `check` raises it in the main thread
            self.failure = failure

    def _send_all(self) -> None:
        stream = self._orders.orders(1, per_minute=PER_MINUTE)
        due = time.monotonic()
        for tick in self._orders.ticks(stream, RATE, self._count):
            chosen = [
                order
                for order in tick
                if order.kind != "too late" or self.too_late_may_come.is_set()
            ]
            self._sender.send(chosen)
            for order in chosen:
                self.truth.add(order.value, too_late=order.kind == "too late")
            self.ticks.append((time.monotonic() - self._started, len(chosen)))
            due += len(tick) / RATE
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return


def load_generator() -> ModuleType:
    """The example's own generate.py; its folder is no package."""
    spec = importlib.util.spec_from_file_location("orders_generator", EXAMPLE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class PipelineRun:
    """`ottla pipeline run` in a process of its own; its JSON lines come through a queue."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._lines: queue.Queue[str] = queue.Queue(LINES_MAX)
        self._errors = directory / "pipeline.log"
        command = [sys.executable, "-m", "ottla", "pipeline", "run", str(EXAMPLE / "pipeline.yaml")]
        command += ["--checkpoint", str(directory / "checkpoint")]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OTTLA_BOOTSTRAP": bootstrap},
                # A Ctrl-C is for us; we pass it on when it is its turn.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="pipeline's lines", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What has come by now."""
        while True:
            try:
                yield json.loads(self._lines.get_nowait())
            except queue.Empty:
                return

    def check(self) -> None:
        if self._process.poll() is not None:
            words = self._errors.read_text(errors="replace").strip().splitlines() or ["no words"]
            raise DemoFailed(f"the pipeline ended with {self._process.returncode}: {words[-1]}")

    def stop(self) -> int:
        """As a service is: it finishes its batch; a Ctrl-C, or a long wait, ends it hard."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            code = self._process.wait(STOP_TIMEOUT_S)
        finally:
            # A JVM that was just starting may not notice that it is alone.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(STOP_TIMEOUT_S)
        return code


class Results:
    """Reads the totals and the dead letters back, as any consumer would."""

    def __init__(self, bootstrap: str) -> None:
        self.totals: dict[Key, Total] = {}
        self.dead = 0
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "demo", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe(["orders-per-minute", "orders.dead"])

    def poll(self, patience_s: float) -> list[tuple[datetime, str, Total]]:
        """The totals that came within that time."""
        fresh = []
        for message in self._consumer.consume(500, patience_s):
            if message.error():
                raise DemoFailed(f"reading the totals failed: {message.error()}")
            if message.topic() == "orders.dead":
                self.dead += 1
                continue
            row = json.loads(message.value() or b"", parse_float=Decimal, parse_int=Decimal)
            minute = datetime.fromisoformat(row["minute"])
            total = Total(int(row["orders"]), Decimal(row["total"]))
            self.totals[minute, row["shop"]] = total
            fresh.append((minute, row["shop"], total))
        return fresh

    def close(self) -> None:
        self._consumer.close()


class Stage:
    """What is printed, and what is kept for the picture."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._started_at = time.time()
        self.batches: list[Batch] = []
        self._last = time.monotonic()
        # Totals that are not shown yet: those of a minute come in several messages.
        self._pending: dict[datetime, dict[str, Total]] = defaultdict(dict)

    @property
    def second(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        print(f"{self.second:5.1f} s  {text}", flush=True)
        self._last = time.monotonic()

    def sign_of_life(self, text: str) -> None:
        if time.monotonic() - self._last >= SIGN_OF_LIFE_S:
            self.say(text)

    def show(self, line: dict[str, Any]) -> None:
        """A line of the pipeline: a batch, or an event between batches."""
        if line["type"] != "batch":
            self.say(f"pipeline: {line['text']}")
            return
        begun = datetime.fromisoformat(line["at"]).timestamp() - self._started_at
        lag = sum(count or 0 for count in line["lag"].values())
        seconds = line["batch_ms"] / 1000
        self.batches.append(Batch(begun + seconds, line["flow"], line["rows_in"], lag, seconds))
        bad = f", {line['bad']:,} bad" if line["bad"] else ""
        self.say(
            f"  {line['flow']:11} batch {line['batch']:<3} {line['rows_in']:>7,} rows in,"
            f" {line['rows_out']:>4,} out, {line['rows_per_s']:>8,.0f} rows/s,"
            f" {seconds:5.2f} s, lag {lag:,}{bad}"
        )

    def show_totals(self, fresh: list[tuple[datetime, str, Total]]) -> None:
        """A line for each minute, when nothing more of it has come for a moment."""
        for minute, shop, total in fresh:
            self._pending[minute][shop] = total
        if fresh:
            return
        for minute, shops in sorted(self._pending.items()):
            words = [f"{shop} {total.amount:,} ({total.orders})" for shop, total in shops.items()]
            self.say(f"{minute:%H:%M}  {'  '.join(sorted(words))}")
        self._pending.clear()


def watch(stage: Stage, generator: Generator, pipeline: PipelineRun, results: Results) -> None:
    """Until all totals that can be there are there; raises when it takes too long."""
    while True:
        for line in pipeline.lines():
            stage.show(line)
            if line["type"] == "started":
                stage.say(f"Orders come now, {RATE:,} a second, some late, some broken.")
                generator.start()
        if stage.second > LAST_ORDER_S:
            generator.send_no_more()
        stage.show_totals(results.poll(0.2))
        if results.totals:
            generator.too_late_may_come.set()
        if generator.failure is not None:
            raise DemoFailed(f"sending orders failed: {generator.failure}")
        if generator.is_done:
            missing = len(generator.truth.closed().keys() - results.totals.keys())
            if not missing and results.dead >= generator.truth.broken:
                stage.show_totals([])
                return
            waiting_for = f"{missing} totals are still to come"
        elif generator.is_started:
            waiting_for = f"{generator.truth.sent:,} orders sent"
        else:
            waiting_for = "Spark is starting"
        stage.sign_of_life(f"… {waiting_for}")
        pipeline.check()
        if stage.second > FIRST_ORDER_S and not generator.is_started:
            raise DemoFailed(f"Spark is not up after {FIRST_ORDER_S:g} s; is the machine busy?")
        if stage.second > DEADLINE_S:
            raise DemoFailed(f"not done after {DEADLINE_S:g} s: {waiting_for}")


def verdict(stage: Stage, truth: Truth, results: Results) -> str:
    wrong = differences(truth, results.totals, results.dead)
    if not results.totals:
        wrong.append("there is no total at all")
    if wrong:
        raise DemoFailed("the totals are not what was sent:\n  " + "\n  ".join(wrong[:20]))
    minutes = len({minute for minute, _ in results.totals})
    counted = sum(total.orders for total in results.totals.values())
    stage.say(
        f"All {len(results.totals)} totals of {minutes} closed minutes equal what was sent"
        f" ({counted:,} orders). {results.dead} broken orders are in orders.dead,"
        f" {truth.too_late} came too late and were left out."
    )
    return f"{truth.sent:,} orders, {len(results.totals)} right totals, {results.dead} dead letters"


@contextmanager
def ended(thing: Any, method: str) -> Iterator[Any]:
    """Calls the method at the end, however it comes."""
    try:
        yield thing
    finally:
        getattr(thing, method)()


def play(seconds: int, picture: Path) -> None:
    stage = Stage()
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as scratch, Broker() as broker:
        stage.say(f"A broker listens on {broker.bootstrap}.")
        for topic, partitions in TOPICS.items():
            broker.create_topic(topic, partitions)
        stage.say(f"Topics: {', '.join(TOPICS)}.")
        stage.say("$ ottla pipeline run examples/orders-per-minute/pipeline.yaml")
        with (
            ended(Results(broker.bootstrap), "close") as results,
            ended(PipelineRun(broker.bootstrap, Path(scratch)), "stop") as pipeline,
            ended(Generator(broker.bootstrap, seconds, stage.started), "stop") as generator,
        ):
            watch(stage, generator, pipeline, results)
            stage.say("Everything that was to come has come; the pipeline is told to stop.")
            code = pipeline.stop()
            for line in pipeline.lines():
                stage.show(line)
            stage.say(f"The pipeline has ended with exit code {code}.")
            # What a stopping pipeline may still have written counts as well.
            stage.show_totals(results.poll(1.0))
            stage.show_totals([])
            words = verdict(stage, generator.truth, results)
        if code != 0:
            raise DemoFailed(f"the pipeline ended with exit code {code}")
    title = f"examples/orders-per-minute: {words}"
    draw(Run(generator.ticks, stage.batches, FLOW, title), picture)
    stage.say(f"Throughput, lag and batch time are drawn in {picture}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long orders are sent")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        play(arguments.seconds, arguments.picture.absolute())
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
        return 130
    except DemoFailed as failure:
        print(f"the demo failed: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
