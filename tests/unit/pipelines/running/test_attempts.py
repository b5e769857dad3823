"""Attempts at a table, where there is no Spark any more."""

from __future__ import annotations

from typing import Any, NoReturn

from py4j.protocol import Py4JNetworkError

from ottla.pipelines.running.attempts import TableAttempt
from scenarios.polling import until


class Gone:
    """A session whose JVM has gone: whatever is asked of it fails so."""

    def __getattr__(self, name: str) -> Any:
        def ask(*_: object) -> NoReturn:
            raise Py4JNetworkError("Answer from Java side is empty")

        return ask


def test_a_spark_that_is_lost_is_told_once_and_without_a_trace() -> None:
    """What a thread leaves unhandled would be printed, and fails here."""
    spark: Any = Gone()
    attempt = TableAttempt(spark, "out", lambda: None)
    until(attempt.is_over, "the attempt goes on", 60)
    cause = attempt.failure()
    assert cause is not None
    assert cause.is_spark_lost
    assert attempt.look() == 0
