"""Runs a pipeline: one streaming query per flow, until all are done or somebody says stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from ottla.errors import OttlaError
from ottla.pipelines.checks.missing_jars import missing_jars
from ottla.pipelines.language.model import Pipeline, Source
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed, Problem
from ottla.pipelines.language.secrets import redact
from ottla.pipelines.running import checkpoints, ownership, starts
from ottla.pipelines.running.attempts import QueryAttempt, TableAttempt, make_active
from ottla.pipelines.running.causes import JAVA_GONE, Cause, cause_of
from ottla.pipelines.running.fingerprints import Document
from ottla.pipelines.running.flows import FlowFactory
from ottla.pipelines.running.handover import hand_over
from ottla.pipelines.running.lag import Ends, Offsets, messages_left, newest, positions
from ottla.pipelines.running.lost_spark import Earlier, SparkLost, untraced
from ottla.pipelines.running.ownership import LETTERS
from ottla.pipelines.running.progress import Batches, Progress, report_of
from ottla.pipelines.running.reports import Event, EventKind, Reporter
from ottla.pipelines.running.starts import STARTS
from ottla.pipelines.running.supervision import (
    Attempt,
    GivenUp,
    Patience,
    Supervised,
    Unusable,
    supervise,
)
from ottla.pipelines.sinks import queries
from ottla.pipelines.views import graph
from ottla.spark.concurrent_streams import let_streams_open_together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipelines.running.metrics import PipelineMetrics

LAG_EVERY_S: Final = 1.0

Check = Callable[[Sequence[graph.Flow]], Sequence[Problem]]


def _nothing_wrong(_: Sequence[graph.Flow]) -> Sequence[Problem]:
    return ()


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    checkpoint: str,
    once: bool,
    report: Reporter,
    stop: threading.Event,
    stop_now: threading.Event,
    metrics: PipelineMetrics | None = None,
    earlier: Earlier | None = None,
    check: Check = _nothing_wrong,
) -> None:
    """Returns when all flows are done (`once`) or stopped; raises PipelineFailed, BadPipeline.

    `stop` lets each flow finish the batch it is at, `stop_now` does not. SparkLost is raised when
    this Spark is of no use any more, after the pause that `restarts` asks for: then the caller may
    end it and call again with a new one, and `earlier` as the exception has it. `check` sees the
    flows before anything starts, and says what is wrong with them.
    """
    teller = Teller(pipeline, report, metrics)
    current = Run(spark, pipeline, checkpoint, once, teller, earlier or Earlier(), check)
    teller.lost_before(current.earlier.restarts)
    try:
        with untraced():
            current.until_end(stop, stop_now)
    except Unusable as unusable:
        cause = unusable.cause
    except Py4JError as error:
        cause = cause_of(error)
        if not cause.is_spark_lost:
            raise
    else:
        return
    raise current.lost(cause, stop)


class Run:
    """How the flows of one run begin, and begin again."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        checkpoint: str,
        once: bool,
        teller: Teller,
        earlier: Earlier,
        check: Check,
    ) -> None:
        self.earlier = earlier
        self._spark = spark
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._once = once
        self._teller = teller
        self._check = check
        self._trigger = _trigger(pipeline, once)
        self._flows: list[Supervised] = []
        # Before the first query starts: where the checkpoints are, and what is noted there.
        self._store: checkpoints.Store
        self._noted: Document

    def until_end(self, stop: threading.Event, stop_now: threading.Event) -> None:
        """Of all flows, or until somebody says stop."""
        spark, pipeline = self._spark, self._pipeline
        checkpoint, teller = self._checkpoint, self._teller
        make_active(spark)
        let_streams_open_together(spark)
        missing = missing_jars(spark, pipeline)
        if missing:
            raise BadPipeline(missing)
        factory = FlowFactory(spark, pipeline)
        made = factory.flows()
        wrong = self._check(made)
        if wrong:
            raise BadPipeline(wrong)
        with ExitStack() as stack:
            store = stack.enter_context(checkpoints.held(spark, checkpoint))
            flows = self._continued(factory, made, store, stop)
            if flows is None:
                return
            if not self._once:
                # `once` is about what was there at the start, and each batch says it itself.
                streams = [flow for flow in flows if flow.frame.isStreaming]
                topics = [source for flow in streams for source in flow.sources]
                teller.ends = stack.enter_context(Ends(pipeline, topics))
            left = [flow for flow in flows if flow.name not in self.earlier.done]
            self._flows = [self.supervised(flow) for flow in left]
            self._flows += self._postings(factory, flows)
            names = ", ".join(flow.name for flow in left)
            teller.event(
                "started", f"{pipeline.name} has started: {names}; checkpoint {checkpoint}"
            )
            self._supervise(stop, stop_now)
            is_stopped = stop.is_set() or stop_now.is_set()
            teller.event("stopped" if is_stopped else "done", teller.summary(is_stopped=is_stopped))

    def _continued(
        self,
        factory: FlowFactory,
        flows: Sequence[graph.Flow],
        store: checkpoints.Store,
        stop: threading.Event,
    ) -> list[graph.Flow] | None:
        """The flows, as their checkpoint lets them go on; None: somebody has said stop."""
        streams = [flow for flow in flows if flow.frame.isStreaming]
        old = checkpoints.known(store, self._checkpoint, self._pipeline)
        document = checkpoints.check(
            store, self._checkpoint, self._pipeline, streams, self._spark.version, old
        )
        begins = self._begins(streams, old, store, stop)
        if begins is None:
            return None
        owned, changes = ownership.owners(streams, old, store)
        document |= {LETTERS: owned, STARTS: begins}
        for change in changes:
            hand_over(
                change, document, store, factory, lambda text: self._teller.event("note", text)
            )
        checkpoints.note(store, document, old)
        self._store, self._noted = store, document
        return factory.owned(flows, document)

    def _begins(
        self,
        streams: Sequence[graph.Flow],
        old: Document | None,
        store: checkpoints.Store,
        stop: threading.Event,
    ) -> dict[str, dict[str, Document]] | None:
        """Where new flows begin, asked as often as a flow is tried; None: somebody said stop."""
        patience = Patience(self._pipeline.restarts)
        while not stop.is_set():
            try:
                return starts.of_new_flows(self._pipeline, streams, old, store)
            except OttlaError as error:
                cause = cause_of(error)
                pause_s = None if cause.is_missing_topic else patience.pause_s()
                if pause_s is None:
                    raise PipelineFailed(self._teller.clean(cause.text)) from None
                self._teller.event(
                    "restarting", f"restarting in {pause_s:g} s because {cause.text}"
                )
                stop.wait(pause_s)
        return None

    def lost(self, cause: Cause, stop: threading.Event) -> PipelineFailed:
        """After the pause before a new Spark: SparkLost; or why there is to be none."""
        text = self._teller.clean(cause.text)
        failures = 0 if self._teller.has_batches else self.earlier.failures
        pause_s = Patience(self._pipeline.restarts, failures).pause_s()
        if stop.is_set():
            return PipelineFailed(text)
        if pause_s is None:
            tries = f" (after {_times(failures, 'restart')} of Spark)" if failures else ""
            return PipelineFailed(f"{text}{tries}")
        self._teller.restarting_spark(pause_s, cause)
        if stop.wait(pause_s):
            return PipelineFailed(text)
        done = (*self.earlier.done, *(flow.name for flow in self._flows if flow.is_done))
        return SparkLost(
            text,
            Earlier(self.earlier.run_id, done, self.earlier.restarts + 1, failures + 1),
        )

    def _supervise(self, stop: threading.Event, stop_now: threading.Event) -> None:
        try:
            supervise(
                self._flows,
                stop=stop,
                stop_now=stop_now,
                stopping=lambda: self._teller.event("stopping", _stopping_words(stop_now)),
                between=self._teller.between,
            )
        except GivenUp as end:
            text = self._teller.clean(_final_words(end, self._checkpoint))
            raise PipelineFailed(text) from None
        except ConnectionError as error:
            raise Unusable(JAVA_GONE) from error

    def supervised(self, flow: graph.Flow) -> Supervised:
        self._teller.flow(flow)
        batches = Batches()
        return Supervised(
            flow.name,
            lambda: self._begin(flow, batches),
            self._pipeline.restarts,
            failing=cause_of,
            restarting=self._teller.restarting,
            unfinished=self._teller.unfinished,
        )

    def _postings(self, factory: FlowFactory, flows: Sequence[graph.Flow]) -> list[Supervised]:
        """The letters of tables, once in a run."""
        named = {f"{source.name}.dead": source for source in ownership.tables(flows)}
        done = self.earlier.done
        return [self._posting(factory, *one) for one in named.items() if one[0] not in done]

    def _posting(self, factory: FlowFactory, name: str, source: Source) -> Supervised:
        return Supervised(
            name,
            lambda: TableAttempt(self._spark, name, lambda: factory.post(source)),
            self._pipeline.restarts,
            failing=cause_of,
            restarting=self._teller.restarting,
            unfinished=self._teller.unfinished,
        )

    def _begin(self, flow: graph.Flow, batches: Batches) -> Attempt:
        if not flow.frame.isStreaming:
            pipeline, run_id = self._pipeline, self.earlier.run_id
            return TableAttempt(
                self._spark,
                flow.name,
                lambda: queries.write_once(flow, pipeline=pipeline, run_id=run_id),
            )
        query = queries.start(
            flow,
            pipeline=self._pipeline,
            checkpoint=checkpoints.flow_location(self._checkpoint, flow.name),
            trigger=self._trigger,
        )
        return QueryAttempt(query, batches, lambda progress: self._batch(flow, progress))

    def _batch(self, flow: graph.Flow, progress: Progress) -> None:
        self._teller.batch(flow, progress)
        left = starts.forgotten(self._noted, flow.name, self._store)
        checkpoints.note(self._store, left, self._noted)
        self._noted = left


class Teller:
    """Turns what happens into reports, without secrets, and keeps the lag of flows without news."""

    def __init__(
        self,
        pipeline: Pipeline,
        report: Reporter,
        metrics: PipelineMetrics | None,
    ) -> None:
        self._pipeline = pipeline
        self._report = report
        self._metrics = metrics
        # Where topics end now, as far as anybody asks.
        self.ends: Ends | None = None
        self._flows: dict[str, graph.Flow] = {}
        self._reached: dict[str, list[Offsets]] = {}
        self._lag_due = float("-inf")
        self._batches = self._rows_in = self._rows_out = self._bad = 0

    def flow(self, flow: graph.Flow) -> None:
        self._flows[flow.name] = flow
        if self._metrics is not None:
            self._metrics.flow(flow.name)

    def batch(self, flow: graph.Flow, progress: Progress) -> None:
        self._reached[flow.name] = positions(progress)
        known = self.ends.now() if self.ends is not None else {}
        told = report_of(flow.name, progress, self._lag(flow, progress, known))
        self._batches += 1
        self._rows_in += told.rows_in
        self._rows_out += told.rows_out
        self._bad += told.bad
        if self._metrics is not None:
            self._metrics.batch(told)
        self._report(told)

    def between(self, now: float) -> None:
        """A flow that gets nowhere has a growing lag, which only this shows."""
        if self._metrics is None or self.ends is None or now < self._lag_due:
            return
        self._lag_due = now + LAG_EVERY_S
        known = self.ends.now()
        for name, reached in self._reached.items():
            self._metrics.lag(name, messages_left(self._flows[name].sources, known, reached))

    def restarting(self, flow: str, pause_s: float, cause: Cause) -> None:
        if self._metrics is not None:
            self._metrics.restarted(flow)
        self.event("restarting", f"restarting in {pause_s:g} s because {cause.text}", flow)

    def lost_before(self, times: int) -> None:
        if self._metrics is not None:
            self._metrics.spark_restarted(times)

    def restarting_spark(self, pause_s: float, cause: Cause) -> None:
        if self._metrics is not None:
            self._metrics.spark_restarted()
        self.event("restarting", f"restarting Spark in {pause_s:g} s because {cause.text}")

    @property
    def has_batches(self) -> bool:
        return self._batches > 0

    def unfinished(self, flow: str, cause: Cause) -> None:
        text = f"the last batch has failed and runs again at the next start: {cause.text}"
        self.event("note", text, flow)

    def event(self, kind: EventKind, text: str, flow: str | None = None) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._report(Event(kind=kind, text=self.clean(text), at=at, flow=flow))

    def clean(self, text: str) -> str:
        return redact(text, self._pipeline.secrets)

    def summary(self, *, is_stopped: bool) -> str:
        bad = f", {self._bad} bad" if self._bad else ""
        return (
            f"{self._pipeline.name} {'has stopped' if is_stopped else 'is done'}: "
            f"{self._batches} batches, {self._rows_in} rows in, {self._rows_out} rows out{bad}"
        )

    def _lag(
        self, flow: graph.Flow, progress: Progress, known: Offsets
    ) -> Mapping[str, int | None]:
        ends = newest(known, *positions(progress, "latestOffset"))
        return messages_left(flow.sources, ends, self._reached[flow.name])


def _trigger(pipeline: Pipeline, once: bool) -> dict[str, Any]:
    if once:
        return {"availableNow": True}
    return {"processingTime": pipeline.trigger or "0 seconds"}


def _stopping_words(stop_now: threading.Event) -> str:
    if stop_now.is_set():
        return "stopping at once"
    return "stopping when the batch at work is done; interrupt again to stop at once"


def _final_words(end: GivenUp, checkpoint: str) -> str:
    if end.cause.is_other_state:
        advice = checkpoints.advice(checkpoint, end.flow)
        return (
            f"flow {end.flow}: the checkpoint cannot follow the change: {end.cause.text}; {advice}"
        )
    tries = f" (after {_times(end.tries, 'restart')})" if end.tries else ""
    return f"flow {end.flow}: {end.cause.text}{tries}"


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
