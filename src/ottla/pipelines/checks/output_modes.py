"""What Spark can do with a table but not with a stream, said before the stream begins.

Spark checks a query when it is started. The same check is asked for here without a start, which
would cost a thread, a checkpoint and more for every sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Sink
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.views.spark_errors import sentence

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame

UNSUPPORTED_MODE: Final = "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"
# What Spark calls an operation that a mode does not fit, and what to do about it.
ADVICE: Final = {
    "streaming aggregations without watermark": (
        "has aggregates without a watermark, so no result is ever final; give the source a "
        "watermark and group by its column or a window of it, or set mode: {others}"
    ),
    "no streaming aggregations": "has no aggregates; set mode: append",
}
OTHER_MODES: Final = {"append": "update or complete", "update": "complete", "complete": "append"}


def mode_problems(sink: Sink, frame: DataFrame) -> list[Problem]:
    """What speaks against running this frame into this sink."""
    # As sinks/queries.py: an upsert runs as update, and where Spark has no update as append.
    modes = (sink.mode,) if sink.upserted is None else ("update", "append")
    first = _unsupported(frame, modes[0])
    if first is None or any(_unsupported(frame, mode) is None for mode in modes[1:]):
        return []
    return [Problem(f"{sink.subject}: {_advice(sink, modes[0], first)}", sink.place)]


def is_aggregated(frame: DataFrame) -> bool:
    """Mode complete is for aggregates only."""
    return _unsupported(frame, "complete") is None


def _unsupported(frame: DataFrame, mode: str) -> AnalysisException | None:
    from pyspark.errors import AnalysisException

    # PySpark has no call for it.
    spark: Any = frame.sparkSession._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    output_mode = getattr(spark.streaming.OutputMode, mode.capitalize())()
    try:
        spark.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
            frame._jdf.queryExecution().analyzed(), output_mode
        )
    except AnalysisException as error:
        return error
    return None


def _advice(sink: Sink, mode: str, error: AnalysisException) -> str:
    parameters = error.getMessageParameters() or {}
    advice = ADVICE.get(parameters.get("operation", ""))
    if error.getCondition() == UNSUPPORTED_MODE and advice is not None:
        return f"mode {mode}: {sink.input} {advice.format(others=OTHER_MODES[mode])}"
    return f"mode {mode}: {sentence(error)}"
