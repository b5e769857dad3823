"""What Spark can do with a table but not with a stream, said before the stream begins.

Spark checks a query when it is started. The same check is asked for here without a start, which
would cost a thread, a checkpoint and more for every sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Sink
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.sinks.upserts import is_upsert
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


def refused(sink: Sink, frame: DataFrame) -> list[Problem]:
    """What speaks against running this frame into this sink."""
    # As sinks.start: an upsert runs as update, and where Spark refuses that as append.
    modes: tuple[str, ...] = ("update", "append") if is_upsert(sink) else (sink.mode,)
    refusals: list[AnalysisException] = []
    for mode in modes:
        refusal = _refusal(frame, mode)
        if refusal is None:
            return []
        refusals.append(refusal)
    text = f"sink {sink.name}: {_advice(sink, modes[0], refusals[0])}"
    return [Problem(text, sink.place)]


def is_aggregated(frame: DataFrame) -> bool:
    """Mode complete is for aggregates only."""
    return _refusal(frame, "complete") is None


def _refusal(frame: DataFrame, mode: str) -> AnalysisException | None:
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


def _advice(sink: Sink, mode: str, refused: AnalysisException) -> str:
    parameters = refused.getMessageParameters() or {}
    advice = ADVICE.get(parameters.get("operation", ""))
    if refused.getCondition() == UNSUPPORTED_MODE and advice is not None:
        return f"mode {mode}: {sink.input} {advice.format(others=OTHER_MODES[mode])}"
    return f"mode {mode}: {sentence(refused)}"
