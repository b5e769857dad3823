"""Lets several streams of one Spark open at once.

Spark keeps the environment of a Python source's workers in one map for the whole JVM
(`PythonFunction.envVars`), into which every stream that opens writes, without a lock. Two that open
together can damage it for good: from then on every task fails with "Task not serializable" or
"Illegal size 5 of collection, expected 6", until the JVM ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = "ottla"


def let_streams_open_together(spark: SparkSession) -> None:
    """In this session: the source as Spark has found it, with a map that many may write to.

    To be called before streams are made; doing it twice is harmless. Over Spark Connect there is no
    JVM to reach.
    """
    from py4j.protocol import Py4JError

    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        return
    try:
        sources = session.sessionState().dataSourceManager()
        if not sources.dataSourceExists(FORMAT):
            return
        source = sources.lookupDataSource(FORMAT)
        worker = source.dataSourceCls()
        jvm: Any = spark.sparkContext._jvm
        safe = jvm.java.util.concurrent.ConcurrentHashMap(worker.envVars())
        copied = worker.copy(
            worker.command(),
            safe,
            worker.pythonIncludes(),
            worker.pythonExec(),
            worker.pythonVer(),
            worker.broadcastVars(),
            worker.accumulator(),
        )
        sources.registerDataSource(FORMAT, source.copy(copied))
    except Py4JError:
        # Another Spark, made otherwise: then a pipeline that meets the fault restarts the JVM.
        return
