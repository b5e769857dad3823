"""Why a query has failed, in one line, and whether another attempt could help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError

from ottla.pipelines.views.spark_errors import one_line

# After these Spark prints what is for developers: offsets, the plan, the stack.
_TAILS: Final = ("\n=== Streaming Query ===", "\n\nJVM stacktrace:", "\n\nDriver stacktrace:")
_SQL_STATE: Final = re.compile(r"\s*SQLSTATE: (\w{5})")
# SQLSTATE classes that another attempt cannot mend: data that does not fit, SQL that cannot run.
_FINAL_STATES: Final = ("22", "42", "0A", "P0")
_FINAL_WORDS: Final = (
    "SCHEMA_NOT_COMPATIBLE",
    "sources in the checkpoint offsets and now there are",
    "has overtaken the query",
    "[STREAMING_STATEFUL_OPERATOR",
    "[STATE_STORE_INVALID",
)
_OTHER_STATE: Final = re.compile(
    r"_SCHEMA_NOT_COMPATIBLE\].*?Existing \w+=(?P<old>.*?) and new \w+=(?P<new>.*?)\.?\n", re.DOTALL
)
_FIELD: Final = re.compile(r"StructField\((\w+),")
# Ours, in starting a query: they come again.
_MISTAKES: Final = (TypeError, AttributeError, NameError, AssertionError, NotImplementedError)
# Nothing that is asked of this JVM will succeed again.
_LOST_WORDS: Final = (
    "Cannot call methods on a stopped SparkContext",
    "because SparkContext was shut down",
    "SparkContext has been shutdown",
    # While it is being stopped.
    'org.apache.spark.SparkContext.dagScheduler()" is null',
    "RpcEnv already stopped",
)
_OUT_OF_MEMORY: Final = "java.lang.OutOfMemoryError"
# Of an executor, which Spark replaces; what runs out of memory otherwise is the driver.
_IN_A_TASK: Final = "Job aborted due to stage failure"
_UNSERIALIZABLE: Final = ("Task not serializable", "Task serialization failed")
_MISSING_TOPIC: Final = re.compile(r"does not exist on \S+(, \S+)*: create it first")


@dataclass(frozen=True)
class Cause:
    """Why a flow has ended. A final one would only come again."""

    text: str
    is_final: bool
    is_missing_topic: bool = False
    # The checkpoint's state was made by another query than this one.
    is_other_state: bool = False
    # The JVM is gone, or is of no use any more.
    is_spark_lost: bool = False
    # May be a moment's; when it comes again at once, something in the JVM is damaged for good.
    is_unserializable: bool = False


JAVA_GONE: Final = Cause(
    "Spark's JVM has gone; --verbose shows its log", is_final=False, is_spark_lost=True
)


def cause_of(error: BaseException) -> Cause:
    """Of anything that came out of starting or running a query."""
    if _is_java_gone(error):
        return JAVA_GONE
    whole = str(error)
    text = one_line(error)
    states = _SQL_STATE.findall(_without_tail(whole))
    # Spark ends the sentence about the query itself with a state of its own.
    inner = states[0] if states else ""
    is_final = (
        type(error).__name__ in ("AnalysisException", "ParseException")
        or inner.startswith(_FINAL_STATES)
        or any(words in whole for words in _FINAL_WORDS)
        or isinstance(error, _MISTAKES)
    )
    if (state := _OTHER_STATE.search(whole)) is not None:
        columns = [_FIELD.findall(state[side]) for side in ("old", "new")]
        words = " → ".join(", ".join(one) or "nothing" for one in columns)
        return Cause(f"its state has other columns ({words})", is_final=True, is_other_state=True)
    return Cause(
        text,
        is_final,
        _MISSING_TOPIC.search(text) is not None,
        is_spark_lost=any(words in whole for words in _LOST_WORDS)
        or (_OUT_OF_MEMORY in whole and _IN_A_TASK not in whole),
        is_unserializable=any(words in whole for words in _UNSERIALIZABLE),
    )


def _is_java_gone(error: BaseException) -> bool:
    """Killed, or out of memory: there is nobody left to ask."""
    if isinstance(error, Py4JNetworkError):
        return True
    # So a call ends in which the connection broke; what Java itself says comes with a trace.
    return type(error) is Py4JError and "Trace:" not in str(error)


def _without_tail(text: str) -> str:
    for tail in _TAILS:
        text = text.partition(tail)[0]
    return text
