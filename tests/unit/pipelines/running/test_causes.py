"""One line out of what Spark says; texts as Spark 4.3 has said them."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from ottla.pipelines.running.causes import cause_of
from ottla.pipelines.views.spark_errors import CHARS_MAX

HEAD = (
    "[STREAM_FAILED] Query [id = 8c659bbb-eaad-403d-84ab-99d565ddcf45, runId = "
    "029057fe-c04b-4241-983f-13d7dc7ab504] terminated with exception: "
)
NAMED = HEAD.replace("Query [id", "Query out [id")
TAIL = """ SQLSTATE: XXKST
=== Streaming Query ===
Identifier: c3 [id = 8c659bbb-eaad-403d-84ab-99d565ddcf45]
Current Available Offsets: {PythonMicroBatchStream@18495cb8: {"a": {"0": 50}}}

Logical Plan:
WriteToMicroBatchDataSource noop-table
+- ~Project [raise_error(USER_RAISED_EXCEPTION, map(errorMessage, x))]
"""
WORKER = "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
SOURCE = (
    "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform "
    "initialOffset: "
)

WHERE = " (views.py line 39, in bad)"


def trace(last: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "/home/me/views.py", line 39, in bad\n'
        '    raise ValueError("never this line")\n'
        "          ^^^^^^^^^^^^\n"
        f"{last}\n SQLSTATE: 38000"
    )


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (WORKER + trace("ValueError: no luck"), f"ValueError: no luck{WHERE}"),
        (WORKER + trace("shop.errors.NoLuck: none"), f"NoLuck: none{WHERE}"),
        (WORKER + trace("KeyError: 'x'"), f"KeyError: 'x'{WHERE}"),
        (
            SOURCE + trace("ottla.spark.planning.CannotRead: cannot ask a:1 for offsets: refused"),
            "cannot ask a:1 for offsets: refused",
        ),
        (
            "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred: py4j.Py4JException: An "
            "exception was raised by the Python Proxy. Return Message: "
            + trace(
                "During handling of the above exception, another exception occurred:\n\n"
                + trace("RuntimeError: the database said no")
            ),
            f"RuntimeError: the database said no{WHERE}",
        ),
        (
            "[FOREACH_BATCH_USER_FUNCTION_ERROR] x: "
            + trace(
                "py4j.protocol.Py4JJavaError: An error occurred while calling o12.save.\n"
                ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in "
                "stage 3.0 failed 1 times\n"
                "\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:2900)\n"
                "Caused by: org.postgresql.util.PSQLException: ERROR: no such table t\n"
                "\tat org.postgresql.core.Query.execute(Query.java:12)"
            ),
            "ERROR: no such table t",
        ),
        (
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n"
            "== SQL (line 1, position 1) ==\n1/0\n^^^\n",
            "Division by zero. Use `try_divide`.",
        ),
        ("[USER_RAISED_EXCEPTION] topic o offset 7: bad SQLSTATE: P0001", "topic o offset 7: bad"),
        (
            "Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most recent "
            "failure: Lost task 1.3 in stage 0.0 (TID 7) (host executor 1): "
            "java.io.IOException: No space left on device",
            "No space left on device",
        ),
        ("assertion failed: There are [1] sources", "assertion failed: There are [1] sources"),
    ],
)
@pytest.mark.parametrize("head", [HEAD, NAMED])
def test_the_innermost_sentence_counts(said: str, line: str, head: str) -> None:
    assert cause_of(Exception(head + said + TAIL)).text == line


@pytest.mark.parametrize(
    "said",
    [
        "[USER_RAISED_EXCEPTION] topic o partition 0 offset 7: no JSON SQLSTATE: P0001",
        "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
        "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema differs. SQLSTATE: XXKST",
        "assertion failed: There are [1] sources in the checkpoint offsets and now there are [2] "
        "sources requested by the query. Cannot continue.",
        SOURCE
        + trace(
            "ottla.spark.data_loss.DataLoss: topic o partition 0: offset 17 was wanted, available "
            "are 200 to 900 (retention or a deletion has overtaken the query); set failOnDataLoss"
        ),
    ],
)
def test_what_would_only_come_again_is_final(said: str) -> None:
    assert cause_of(Exception(HEAD + said + TAIL)).is_final


@pytest.mark.parametrize(
    "said",
    [
        WORKER + trace("OSError: no luck"),
        SOURCE + trace("ottla.spark.planning.CannotRead: cannot ask a:1 for offsets: refused"),
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] x: " + trace("RuntimeError: connection lost"),
    ],
)
def test_what_may_pass_is_tried_again(said: str) -> None:
    assert not cause_of(Exception(HEAD + said + TAIL)).is_final


def test_our_own_mistakes_are_final() -> None:
    assert cause_of(TypeError("start() got an unexpected argument")).is_final
    assert not cause_of(ConnectionRefusedError("refused")).is_final


@pytest.mark.parametrize("brokers", ["a:1", "a:1, b:2, [::1]:9092"])
def test_missing_topic_is_told_apart(brokers: str) -> None:
    said = f"topic nosuch does not exist on {brokers}: create it first, or correct the name"
    cause = cause_of(Exception(HEAD + SOURCE + trace(f"ottla.spark.planning.CannotRead: {said}")))
    assert (cause.text, cause.is_missing_topic, cause.is_final) == (said, True, False)


def test_a_line_has_an_end() -> None:
    text = cause_of(Exception("x " * 5000)).text
    assert len(text) <= CHARS_MAX + 1
    assert text.endswith("…")
    assert "\n" not in cause_of(Exception("a\nb\n\nc")).text
    assert cause_of(RuntimeError()).text == "RuntimeError"


def test_state_of_another_query_is_told_by_its_columns() -> None:
    said = (
        "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing "
        "state value schema.\nPlease check number and type of fields.\nExisting "
        "value_schema=StructType(StructField(id,StringType,true),StructField(at,TimestampType,true))"
        " and new value_schema=StructType(StructField(id,StringType,true)).\nIf you want to force "
        "running the query without schema validation, please set x to false. SQLSTATE: XXKST"
    )
    cause = cause_of(Exception(HEAD + said + TAIL))
    assert cause.text == "its state has other columns (id, at → id)"
    assert (cause.is_other_state, cause.is_final) == (True, True)


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JNetworkError("An error occurred while trying to connect to the Java server (a:1)"),
        # A call during which the connection broke.
        Py4JError("An error occurred while calling o42.isActive"),
    ],
)
def test_a_jvm_that_does_not_answer_has_gone(error: Exception) -> None:
    cause = cause_of(error)
    assert (cause.is_spark_lost, cause.is_final) == (True, False)
    assert cause.text == "Spark's JVM has gone; --verbose shows its log"


@pytest.mark.parametrize(
    "said",
    [
        "Job 12 cancelled because SparkContext was shut down",
        "Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was created at:",
        'Cannot invoke "org.apache.spark.scheduler.DAGScheduler.cleanupQueryJobs(long)" because '
        'the return value of "org.apache.spark.SparkContext.dagScheduler()" is null',
        "org.apache.spark.rpc.RpcEnvStoppedException: RpcEnv already stopped.",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_what_ends_the_driver_loses_spark(said: str) -> None:
    assert cause_of(Exception(HEAD + said + TAIL)).is_spark_lost


@pytest.mark.parametrize(
    "error",
    [
        Exception(HEAD + WORKER + trace("OSError: no luck") + TAIL),
        # An executor of a cluster, which Spark replaces by itself.
        Exception(
            HEAD + "Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most "
            "recent failure: Lost task 1.3 in stage 0.0 (TID 7) (host executor 1): "
            "java.lang.OutOfMemoryError: Java heap space" + TAIL
        ),
        Py4JError("An error occurred while calling o42.copy. Trace:\npy4j.Py4JException: no copy"),
        ConnectionRefusedError("the broker, for instance"),
    ],
)
def test_what_passes_does_not_lose_spark(error: Exception) -> None:
    assert not cause_of(error).is_spark_lost


@pytest.mark.parametrize(
    "said",
    [
        "Job aborted due to stage failure: Task serialization failed: "
        "java.lang.IllegalStateException: Illegal size 5 of collection, expected 6",
        "org.apache.spark.SparkException: Task not serializable",
    ],
)
def test_tasks_that_cannot_be_serialized_are_told_apart(said: str) -> None:
    cause = cause_of(Exception(HEAD + said + TAIL))
    assert (cause.is_unserializable, cause.is_final, cause.is_spark_lost) == (True, False, False)
