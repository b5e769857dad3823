"""Pipelines as the tests run them: in a process of their own that can be killed, or in this one."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.launch.session import settings_of
from ottla.pipelines.running.lost_spark import Earlier
from ottla.pipelines.running.metrics import PipelineMetrics
from ottla.pipelines.running.reports import BatchReport, Event, Report
from ottla.pipelines.running.run import run
from scenarios.polling import until
from spark.kit.children import Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A Spark of its own is slow to start where much else runs.
PATIENCE_S = 240.0
BUSY = "Python worker failed to connect back"


class CommandLine(Child):
    """`ottla` with these arguments; ends with its owner, and its JVM with it."""

    def __init__(self, arguments: Sequence[str], directory: Path) -> None:
        super().__init__("ottla", {}, directory)
        self._command = [
            sys.executable, "-m", "spark.kit.pipeline_child", json.dumps(list(arguments))
        ]  # fmt: skip


def own_session(spark: SparkSession, pipeline: Pipeline) -> SparkSession:
    """Of the shared Spark, with the settings that `ottla pipeline run` would give it."""
    fresh = spark.newSession()
    for name, value in settings_of(pipeline, "local[2]").items():
        if fresh.conf.isModifiable(name):
            fresh.conf.set(name, value)
    return fresh


class Running:
    """In a thread, in a session of its own, until `with` ends; stopped at once where that fails."""

    def __init__(
        self,
        spark: SparkSession,
        file: Path,
        *,
        once: bool = False,
        metrics: PipelineMetrics | None = None,
        earlier: Earlier | None = None,
        **overrides: str,
    ) -> None:
        self.stop = threading.Event()
        self.stop_now = threading.Event()
        self.reports: list[Report] = []
        self.failure: BaseException | None = None
        self.checkpoint = file.parent / "checkpoint"
        self._spark = spark
        self._file = file
        self._once = once
        self._metrics = metrics
        self._earlier = earlier
        self._overrides = {name.replace("__", "."): text for name, text in overrides.items()}
        self._thread = threading.Thread(target=self._run, name=f"run of {file.name}")

    @property
    def batches(self) -> list[BatchReport]:
        return [one for one in self.reports if isinstance(one, BatchReport)]

    @property
    def events(self) -> list[Event]:
        """Without those of a machine so busy that Spark's workers take ten seconds to start."""
        events = [one for one in self.reports if isinstance(one, Event)]
        return [one for one in events if BUSY not in one.text]

    @property
    def kinds(self) -> list[str]:
        return [one.kind for one in self.events]

    def texts(self, kind: str) -> list[str]:
        return [one.text for one in self.events if one.kind == kind]

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        (self.stop if kind is None else self.stop_now).set()
        self._thread.join(PATIENCE_S)
        if not self.is_over:
            self.stop_now.set()
            self._thread.join(PATIENCE_S)
            raise AssertionError(f"the run did not stop; {self.reports}")
        if kind is None:
            self.check()

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Waits, and fails at once when the run does."""
        until(lambda: self.check() and holds(), what, PATIENCE_S)

    def end(self) -> Self:
        """Waits for the end; what the run has raised is in `failure`."""
        until(lambda: self.is_over, "the run does not end", PATIENCE_S)
        return self

    def check(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return True

    def _run(self) -> None:
        try:
            pipeline = read_pipeline(self._file, overrides=self._overrides)
            run(
                own_session(self._spark, pipeline),
                pipeline,
                checkpoint=str(self.checkpoint),
                once=self._once,
                report=self.reports.append,
                stop=self.stop,
                stop_now=self.stop_now,
                metrics=self._metrics,
                earlier=self._earlier,
            )
        except BaseException as error:
            self.failure = error


def run_once(spark: SparkSession, file: Path, **overrides: str) -> Running:
    """`--once`: takes what is there, ends with lag 0; raises what the run raises."""
    with Running(spark, file, once=True, **overrides) as running:
        running.end().check()
    return running
