"""The jars that databases and Delta need: a class that must be there, and where Maven has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Jar(NamedTuple):
    java_class: str
    # As `--packages` takes them, perhaps with advice.
    coordinates: str


# By the word after `jdbc:`.
DRIVERS: Final = {
    "postgresql": Jar("org.postgresql.Driver", "org.postgresql:postgresql:42.7.11"),
    "mysql": Jar("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.3.0"),
    "mariadb": Jar("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.3"),
    "sqlserver": Jar(
        "com.microsoft.sqlserver.jdbc.SQLServerDriver",
        "com.microsoft.sqlserver:mssql-jdbc:12.10.0.jre11",
    ),
    "oracle": Jar("oracle.jdbc.OracleDriver", "com.oracle.database.jdbc:ojdbc11:23.8.0.25.04"),
    "h2": Jar("org.h2.Driver", "com.h2database:h2:2.3.232"),
    "sqlite": Jar("org.sqlite.JDBC", "org.xerial:sqlite-jdbc:3.49.1.0"),
}
DELTA_CLASS: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_VERSION: Final = "4.4.0"
DELTA_SPARK_NEWEST: Final = (4, 2)


def jdbc_driver(url: str, options: Mapping[str, str]) -> Jar | None:
    """The driver that the options name, or the one of this database, where it is known."""
    named = next((v for n, v in options.items() if n.lower() == "driver"), None)
    found = re.match(r"jdbc:([a-z0-9]+):", url.strip().lower())
    known = DRIVERS.get(found[1]) if found else None
    if named is not None and (known is None or named != known.java_class):
        return Jar(named, "<the Maven coordinates of this driver>")
    return known


def delta_jar(spark_version: str) -> Jar:
    return Jar(DELTA_CLASS, delta_advice(spark_version))


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
