"""The tests in a pipeline's own file: rows in, rows out, on Spark without a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from ottla.pipelines.cases.diffs import compare, render
from ottla.pipelines.cases.expected_rows import read_expected
from ottla.pipelines.cases.results import Result, sink_for
from ottla.pipelines.cases.row_files import BadCase, unknown
from ottla.pipelines.cases.stand_ins import StandIns
from ottla.pipelines.language.keys import BAD_SUFFIX
from ottla.pipelines.language.model import Case, Pipeline
from ottla.pipelines.language.problems import BadPipeline, Place, Problem
from ottla.pipelines.language.secrets import redact
from ottla.pipelines.views.graph import build
from ottla.pipelines.views.spark_errors import one_line, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY_TIMEOUT_S: Final = 600.0
RED, GREEN, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"
# Rows are few: one task for each stage is quickest.
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
}

# Takes one line of what a person is to see.
Report = Callable[[str], None]


def run_tests(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    only: str | None = None,
    report: Report = print,
    coloured: bool = False,
) -> bool:
    """Whether all tests of the file (or the one called `only`) have passed.

    `report` gets line by line what to print, with colours where `coloured` (a terminal). Raises
    BadPipeline when the file itself is wrong.
    """
    cases = _selected(pipeline, only)
    begun = time.monotonic()
    failed = 0
    for case in cases:
        case_begun = time.monotonic()
        lines = [
            redact(line, pipeline.secrets) for line in run_case(spark, pipeline, case, coloured)
        ]
        seconds = time.monotonic() - case_begun
        failed += bool(lines)
        report(f"{_verdict(not lines, coloured)}  {case.name}  {seconds:.1f} s")
        for line in lines:
            report(f"  {line}")
    report(_summary(len(cases), failed, time.monotonic() - begun))
    return failed == 0


def run_case(
    spark: SparkSession, pipeline: Pipeline, case: Case, coloured: bool = False
) -> list[str]:
    """What is wrong, line by line; nothing when the test has passed."""
    from pyspark.errors import PySparkException

    session = _session(spark, pipeline)
    with (
        TemporaryDirectory(prefix="ottla-pipeline-test-", ignore_cleanup_errors=True) as directory,
        ExitStack() as running,
    ):
        try:
            with quiet():
                results = _started(session, pipeline, case, Path(directory), running)
        except BadCase as wrong:
            return list(map(str, wrong.problems))
        except PySparkException as wrong:
            return [one_line(wrong)]
        deadline = time.monotonic() + QUERY_TIMEOUT_S
        return [line for result in results for line in _told(result, case, deadline, coloured)]


def _selected(pipeline: Pipeline, only: str | None) -> list[Case]:
    if not pipeline.tests:
        place = Place(pipeline.file, 1, 1)
        raise BadPipeline(
            [Problem("there are no tests in this file; write some below tests:", place)]
        )
    if only is None:
        return list(pipeline.tests.values())
    if only not in pipeline.tests:
        raise BadPipeline([Problem(unknown(only, pipeline.tests, "test"))])
    return [pipeline.tests[only]]


def _session(spark: SparkSession, pipeline: Pipeline) -> SparkSession:
    """Views and settings of a test are its own."""
    session = spark.newSession()
    for name, value in {**SETTINGS, **pipeline.spark}.items():
        # Those of the process can be set only before it starts.
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", SETTINGS["spark.sql.shuffle.partitions"])
    return session


def _started(
    session: SparkSession, pipeline: Pipeline, case: Case, directory: Path, running: ExitStack
) -> list[Result]:
    """All that is expected, each in a query of its own; they run side by side."""
    _check_names(pipeline, case)
    stand_ins = StandIns(session, pipeline, case, directory)
    bad = [name for name in case.expect if name.endswith(BAD_SUFFIX)]
    wanted = [name for name in case.expect if name not in bad]
    # Without sinks: none is touched, and nothing is made that no view in question needs.
    graph = build(session, replace(pipeline, sinks={}), stand_ins.open, wanted=wanted)
    frames = dict(graph.frames)
    for name in bad:
        frames[name] = stand_ins.open_bad(pipeline.sources[name.removesuffix(BAD_SUFFIX)])
    results = []
    for at, name in enumerate(case.expect):
        result = Result(name, frames[name], sink_for(pipeline, name))
        running.callback(result.stop)
        result.start(directory / f"checkpoint-{at}")
        results.append(result)
    return results


def _told(result: Result, case: Case, deadline: float, coloured: bool) -> list[str]:
    """What is wrong with one result does not hide what is wrong with another."""
    from pyspark.errors import PySparkException

    try:
        return list(_failures(result, case, deadline, coloured=coloured))
    except BadCase as wrong:
        return list(map(str, wrong.problems))
    except PySparkException as wrong:
        return [f"{result.name}: {one_line(wrong)}"]


def _failures(result: Result, case: Case, deadline: float, *, coloured: bool) -> Iterator[str]:
    rows = result.rows(deadline)
    expected = read_expected(case.expect[result.name], result.kind, result.optional)
    diff = compare(expected, rows)
    if diff:
        yield from render(diff, result.name, coloured=coloured)
        if diff.missing and (hint := result.hint()):
            yield f"  {hint}"


def _check_names(pipeline: Pipeline, case: Case) -> None:
    problems = [
        Problem(f"given: {unknown(name, pipeline.sources, 'source')}", case.place)
        for name in case.given
        if name not in pipeline.sources
    ]
    known = [*pipeline.views, *pipeline.sources]
    known += [f"{name}{BAD_SUFFIX}" for name in pipeline.sources]
    problems += [
        Problem(f"expect: {unknown(name, known, 'view or source')}", case.place)
        for name in case.expect
        if name not in known
    ]
    if problems:
        raise BadCase(problems)


def _verdict(passed: bool, coloured: bool) -> str:
    word = "ok    " if passed else "FAILED"
    if not coloured:
        return word
    return f"{GREEN if passed else RED}{word}{PLAIN}"


def _summary(cases: int, failed: int, seconds: float) -> str:
    tests = "1 test" if cases == 1 else f"{cases} tests"
    verdict = "all ok" if failed == 0 else f"{cases - failed} ok, {failed} FAILED"
    return f"{tests}: {verdict}, {seconds:.1f} s"
