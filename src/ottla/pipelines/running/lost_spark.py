"""When a Spark cannot be used any more: how a run says so, and goes on in a new one.

Some failures no restart of a query can mend: the JVM is gone or out of memory, its context has
stopped, or something in it is damaged. Checkpoints outlive all of that: the run goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Self

from ottla.pipelines.language.problems import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_TIMEOUT_S: Final = 10.0
PY4J_TRACES: Final = ("Exception while sending command.",)


@dataclass(frozen=True)
class Earlier:
    """What a run must know of the Sparks that it has already lost."""

    # One name for all attempts of a run: what was written already is not written again.
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    # Flows that have come to their end.
    done: tuple[str, ...] = ()
    restarts: int = 0
    # Those since a batch has succeeded.
    failures: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(**{**found, "done": tuple(found["done"])})


class SparkLost(PipelineFailed):
    """This Spark is of no use any more; `run` may be called again with another and `earlier`."""

    def __init__(self, text: str, earlier: Earlier) -> None:
        super().__init__(text)
        self.earlier = earlier


@contextmanager
def untraced() -> Iterator[None]:
    """Without the traces that py4j logs when the JVM is gone: that is said in one line."""

    def is_news(record: logging.LogRecord) -> bool:
        return record.msg not in PY4J_TRACES

    root = logging.getLogger()
    root.addFilter(is_news)
    try:
        yield
    finally:
        root.removeFilter(is_news)


def stop_session(spark: SparkSession) -> None:
    """Of a JVM that is gone nothing is left to stop."""
    from py4j.protocol import Py4JError

    with untraced(), warnings.catch_warnings(), contextlib.suppress(Py4JError, ConnectionError):
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
        spark.stop()


def end_java() -> None:
    """Ends the JVM, which may not answer any more: SparkSession.stop would leave it alive."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)
        return
    process.kill()
    process.wait()
