"""Which jars a pipeline's sources and sinks need, and how to get those that are missing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import (
    DeltaSink,
    DeltaSource,
    JdbcSink,
    JdbcSource,
    Pipeline,
    Sink,
    Source,
)
from ottla.pipelines.language.problems import Problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# By the word behind `jdbc:`: the driver's class, and where Maven has it.
DRIVERS: Final = {
    "postgresql": ("org.postgresql.Driver", "org.postgresql:postgresql:42.7.11"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.3.0"),
    "mariadb": ("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.3"),
    "sqlserver": (
        "com.microsoft.sqlserver.jdbc.SQLServerDriver",
        "com.microsoft.sqlserver:mssql-jdbc:12.10.0.jre11",
    ),
    "oracle": ("oracle.jdbc.OracleDriver", "com.oracle.database.jdbc:ojdbc11:23.8.0.25.04"),
    "h2": ("org.h2.Driver", "com.h2database:h2:2.3.232"),
    "sqlite": ("org.sqlite.JDBC", "org.xerial:sqlite-jdbc:3.49.1.0"),
}
DELTA_CLASS: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_VERSION: Final = "4.4.0"
DELTA_SPARK_NEWEST: Final = (4, 2)


def missing_jars(spark: SparkSession, pipeline: Pipeline) -> list[Problem]:
    """One problem per source or sink whose classes Spark cannot load; names the coordinates."""
    problems = []
    parts: list[Source | Sink] = [*pipeline.sources.values(), *pipeline.sinks.values()]
    for one in parts:
        kind = "source" if isinstance(one, Source) else "sink"
        needed = needed_class(one, spark.version)
        if needed is None or has_class(spark, needed[0]):
            continue
        name, coordinates = needed
        problems.append(
            Problem(
                f"{kind} {one.name} needs the class {name}, which Spark does not find: add "
                f"--packages {coordinates} (or --jars with the file)",
                one.place,
            )
        )
    return problems


def needed_class(one: Source | Sink, spark_version: str) -> tuple[str, str] | None:
    """A class that must be there, and the Maven coordinates that bring it; None: nothing."""
    if isinstance(one, DeltaSource | DeltaSink):
        return DELTA_CLASS, delta_advice(spark_version)
    if not isinstance(one, JdbcSource | JdbcSink):
        return None
    named = next((v for n, v in one.options.items() if n.lower() == "driver"), None)
    found = re.match(r"jdbc:([a-z0-9]+):", one.url.strip().lower())
    known = DRIVERS.get(found[1]) if found else None
    if named is not None and (known is None or named != known[0]):
        return named, "<the Maven coordinates of this driver>"
    return known


def delta_advice(spark_version: str) -> str:
    """The coordinates of Delta, which names its artefacts after the one Spark they are for."""
    wanted = tuple(int(one) for one in spark_version.split(".")[:2])
    words = ".".join(map(str, min(wanted, DELTA_SPARK_NEWEST)))
    found = f"io.delta:delta-spark_{words}_2.13:{DELTA_VERSION}"
    if wanted <= DELTA_SPARK_NEWEST:
        return found
    return (
        f"{found}, which does not run on this Spark {spark_version}: first pip install "
        f'"pyspark~={words}.0", or find a Delta that is made for it'
    )


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the driver's class loader finds it.

    No public call of PySpark asks for a class, so this goes to the JVM. Jars of --packages and
    --jars are found by the loader of Spark's threads only.
    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True
