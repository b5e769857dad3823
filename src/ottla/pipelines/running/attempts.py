"""What a flow tries: a streaming query of Spark's, or the one write of a table."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.running.causes import Cause, cause_of
from ottla.pipelines.running.progress import Batches, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

# What Spark says of a query until its sources are there.
STARTING: Final = "Initializing"
# And while a batch is being written; at all other times none is.
AT_WORK: Final = ("Processing new data", "No new data but cleaning up state")
JOIN_TIMEOUT_S: Final = 60.0


def make_active(spark: SparkSession) -> None:
    """In this thread: there Spark looks for formats written in Python, such as ours.

    PySpark has no call that says just that; making a frame does it on the way.
    """
    spark.createDataFrame([], "nothing int")


class QueryAttempt:
    """A query; `batches` outlives it, so that none is told twice after a restart."""

    def __init__(
        self, query: StreamingQuery, batches: Batches, tell: Callable[[Progress], None]
    ) -> None:
        self._query = query
        self._batches = batches
        self._tell = tell

    def is_starting(self) -> bool:
        return bool(self._query.isActive) and self._says(STARTING)

    def is_over(self) -> bool:
        return not self._query.isActive

    def failure(self) -> Cause | None:
        error = self._query.exception()
        return None if error is None else cause_of(error)

    def look(self) -> int:
        fresh = self._batches.fresh(_plain(self._query.lastProgress), self._recent)
        for progress in fresh:
            self._tell(progress)
        return len(fresh)

    def is_at_work(self) -> bool:
        return self._says(*AT_WORK)

    def stop(self) -> None:
        from pyspark.errors import PySparkException

        try:
            self._query.stop()
        except PySparkException as error:
            # spark.sql.streaming.stopTimeout has passed.
            raise PipelineFailed(f"the flow does not stop: {cause_of(error).text}") from error

    def _says(self, *beginnings: str) -> bool:
        return str(self._query.status["message"]).startswith(beginnings)

    def _recent(self) -> Sequence[Progress]:
        return [one for one in map(_plain, self._query.recentProgress) if one is not None]


class TableAttempt:
    """One write of a flow without streams, in a thread of its own."""

    def __init__(self, spark: SparkSession, name: str, write: Callable[[], None]) -> None:
        self._spark = spark
        self._tag = f"ottla-{name}"
        self._write = write
        self._error: BaseException | None = None
        self._is_stopped = False
        self._is_told = False
        self._thread = threading.Thread(target=self._run, name=f"ottla-{name}", daemon=True)
        self._thread.start()

    def is_starting(self) -> bool:
        return False

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def failure(self) -> Cause | None:
        return None if self._error is None or self._is_stopped else cause_of(self._error)

    def look(self) -> int:
        is_done = self.is_over() and self._error is None
        is_new, self._is_told = is_done and not self._is_told, is_done
        return int(is_new)

    def is_at_work(self) -> bool:
        return not self.is_over()

    def stop(self) -> None:
        if self.is_over():
            return
        self._is_stopped = True
        self._spark.interruptTag(self._tag)
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            make_active(self._spark)
            self._spark.addTag(self._tag)
            self._write()
        except Exception as error:  # Told by `failure`, in the thread that asks.
            self._error = error
        finally:
            # The thread ends here, and of a JVM that is gone nobody is told twice.
            with suppress(Exception):
                self._spark.removeTag(self._tag)


def _plain(progress: StreamingQueryProgress | None) -> dict[str, Any] | None:
    """As JSON, in which offsets are documents and not texts."""
    return None if progress is None else dict(json.loads(progress.json))
