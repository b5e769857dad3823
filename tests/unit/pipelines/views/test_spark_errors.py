"""The line that counts, out of what Spark 4.3 has really said; and places in the SQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.language.model import Sql
from ottla.pipelines.language.problems import Place
from ottla.pipelines.views.spark_errors import CHARS_MAX, line_that_counts, one_line, place_at

QUERY = "[id = f930b1ee-4472-4d30-b603-4c34dbbd127d, runId = 164ce782-4873-4422-9c9c-61cf36ef7beb]"
FAILED = f"[STREAM_FAILED] Query {QUERY} terminated with exception: "
NAMED = f"[STREAM_FAILED] Query out {QUERY} terminated with exception: "
PLAN = f"""
=== Streaming Query ===
Identifier: {QUERY}
Current Committed Offsets: {{}}
Current State: ACTIVE
Logical Plan:
WriteToMicroBatchDataSource noop-table
+- ~Project [bad(a#2)#3 AS bad(a)#4]
"""
UDF = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "/shop/rules.py", line 22, in priced
    raise ValueError("that is\\nbad")
                ^^^^^^^^^^^^^^^^^^^^
ValueError: that is
bad
 SQLSTATE: 38000 SQLSTATE: XXKST"""
CHAINED = """Traceback (most recent call last):
  File "/shop/rules.py", line 3, in f
    {}["x"]
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 9, in main
    process()
  File "/shop/rules.py", line 5, in g
    raise RuntimeError("later")
RuntimeError: later
"""
BROKER_AWAY = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data \
source perform initialOffset: Traceback (most recent call last):
  File "/work/src/ottla/spark/asker.py", line 156, in _run
    raise CannotRead(f"cannot ask {where} for offsets: {error or 'no answer'}") from None
ottla.spark.planning.CannotRead: cannot ask 127.0.0.1:1 for offsets: Connection refused
 SQLSTATE: 38000 SQLSTATE: XXKST"""
FOREACH = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function \
in foreach batch sink. Reason: An exception was raised by the Python Proxy. Return Message: \
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/errors/exceptions/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use \
`try_divide`. SQLSTATE: 22012
== SQL (line 1, position 1) ==
1/(a-1)
^^^^^^^

 SQLSTATE: 39000 SQLSTATE: XXKST"""
REFUSED = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/py4j/protocol.py", line 327, in get_return_value
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o256.save.
: org.postgresql.util.PSQLException: The connection attempt failed.
\tat org.postgresql.core.v3.ConnectionFactoryImpl.openConnectionImpl(ConnectionFactoryImpl.java:385)
Caused by: java.net.UnknownHostException: db
\tat java.base/sun.nio.ch.NioSocketImpl.connect(NioSocketImpl.java:567)
\t... 12 more
"""
TASK = """An error occurred while calling o267.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 5.0 (TID 5) (localhost executor driver): \
java.io.IOException: Mkdirs failed to create file:/proc/x
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
Caused by: java.io.IOException: Mkdirs failed to create file:/proc/x
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)
"""
NO_DELTA = """An error occurred while calling o260.load.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data \
source: delta. Make sure the provider name is correct. SQLSTATE: 42K02
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.dataSourceNotFoundError(Errors.scala:770)
Caused by: java.lang.ClassNotFoundException: delta.DefaultSource
\t... 29 more
"""
VAGUE = """[TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(Errors.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FAILED + UDF + PLAN, "ValueError: that is bad (rules.py line 22, in priced)"),
        (NAMED + UDF + PLAN, "ValueError: that is bad (rules.py line 22, in priced)"),
        (CHAINED, "RuntimeError: later (rules.py line 5, in g)"),
        (NAMED + BROKER_AWAY, "cannot ask 127.0.0.1:1 for offsets: Connection refused"),
        (FAILED + FOREACH + PLAN, "Division by zero. Use `try_divide`."),
        (
            NAMED + "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL ==\n1/0\n" + PLAN,
            "Division by zero.",
        ),
        (
            FAILED + "[USER_RAISED_EXCEPTION] orders partition 0 offset 3: broken SQLSTATE: P0001",
            "orders partition 0 offset 3: broken",
        ),
        (REFUSED, "UnknownHostException: db"),
        (TASK, "Mkdirs failed to create file:/proc/x"),
        (
            NO_DELTA,
            "Failed to find the data source: delta. Make sure the provider name is correct.",
        ),
        (VAGUE, "No space left on device"),
        ("java.lang.NullPointerException\n\tat a.b(C.java:1)", "NullPointerException"),
        ("a sentence of ours", "a sentence of ours"),
    ],
)
def test_the_line_that_counts(text: str, line: str) -> None:
    assert line_that_counts(text) == line


def test_whatever_comes_is_one_short_line() -> None:
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert one_line(ValueError("\n  two\n lines")) == "two"
    assert len(one_line(ValueError("x" * 10_000))) == CHARS_MAX + 1


def test_places_of_sql_are_those_of_the_file() -> None:
    """A block of two lines that is indented by four in the file."""
    sql = Sql("SELECT a\nFROM b\n", Place(Path("p.yaml"), 7, 5), 4)
    places = {index: str(place_at(sql, index)) for index in (-3, 0, 7, 9, 14, 99)}
    assert places == {
        -3: "p.yaml:7:5",
        0: "p.yaml:7:5",
        7: "p.yaml:7:12",
        9: "p.yaml:8:5",
        14: "p.yaml:8:10",
        99: "p.yaml:8:11",
    }
