"""What Spark can do with a table but not with a stream, said before the stream begins.

Spark checks a query when it is started, in the thread that starts it. So a query over empty sources
is started into nowhere, and stopped before it has anything to do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ottla.pipelines.model import Sink
from ottla.pipelines.problems import Problem
from ottla.pipelines.sql_errors import sentence
from ottla.pipelines.upserts import is_upsert

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


class StreamingChecks:
    """Checks of one validation, which share a directory for checkpoints that are thrown away."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="ottla-validate-", ignore_cleanup_errors=True
        )
        self._tried = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def problems(self, sink: Sink, frame: DataFrame) -> list[Problem]:
        """What speaks against running this frame into this sink."""
        # As sinks.start: an upsert runs as update, and where Spark refuses that as append.
        modes: tuple[str, ...] = ("update", "append") if is_upsert(sink) else (sink.mode,)
        refusals: list[AnalysisException] = []
        for mode in modes:
            refused = self._refusal(frame, mode)
            if refused is None:
                return []
            refusals.append(refused)
        text = f"sink {sink.name}: {_advice(sink, modes[0], refusals[0])}"
        return [Problem(text, sink.place)]

    def is_aggregated(self, frame: DataFrame) -> bool:
        """Mode complete is for aggregates only."""
        return self._refusal(frame, "complete") is None

    def _refusal(self, frame: DataFrame, mode: str) -> AnalysisException | None:
        from pyspark.errors import AnalysisException

        self._tried += 1
        checkpoint = Path(self._directory.name) / str(self._tried)
        writer = frame.writeStream.format("noop").outputMode(mode)
        try:
            writer.option("checkpointLocation", str(checkpoint)).start().stop()
        except AnalysisException as error:
            return error
        return None


def _advice(sink: Sink, mode: str, refused: AnalysisException) -> str:
    parameters = refused.getMessageParameters() or {}
    advice = ADVICE.get(parameters.get("operation", ""))
    if refused.getCondition() == UNSUPPORTED_MODE and advice is not None:
        return f"mode {mode}: {sink.input} {advice.format(others=OTHER_MODES[mode])}"
    return f"mode {mode}: {sentence(refused)}"
