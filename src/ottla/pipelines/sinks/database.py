"""Statements on a database from the driver, by the JDBC driver that Spark was given.

Spark's own JDBC writer moves rows, but runs no statements in a transaction of one's choosing, and a
second client library would need a second set of connection settings. So this asks the JVM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from py4j.protocol import Py4JJavaError

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.language.secrets import redact

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

# Of PostgreSQL's driver, in seconds; the options of a sink or source may set others.
TIMEOUTS: Final[Mapping[str, str]] = {
    "connectTimeout": "10", "loginTimeout": "20", "socketTimeout": "600",
}  # fmt: skip

_LINE_CHARS_MAX: Final = 400
_HINTS: Final[Mapping[str, str]] = {
    "28P01": "check user and password",
    "28000": "check user and password",
    "3D000": "check the name at the end of the URL",
    "08001": "check host and port, and that the database runs",
    "42501": "the user needs the right to write to the table and to create tables beside it",
    "55P03": "another run or a person holds a lock: is the pipeline running twice?",
}


class DatabaseFailed(PipelineFailed):
    """What a database said, in one line; `state` is its SQLSTATE, if it gave one."""

    def __init__(self, line: str, state: str = "") -> None:
        super().__init__(line)
        self.state = state


class Database:
    """A connection that commits when it is told to."""

    def __init__(self, connection: Any, where: str, secrets: Collection[str]) -> None:
        self._connection = connection
        self._where = where
        self._secrets = secrets

    @classmethod
    def connect(
        cls,
        spark: SparkSession,
        driver: str,
        url: str,
        properties: Mapping[str, str],
        secrets: Collection[str],
    ) -> Self:
        where = _without_settings(url)
        try:
            # The only use of the JVM: java.sql has no other door. DriverManager would look into
            # the JVM's first class path only, while --jars and --packages are in Spark's loader,
            # which every thread of Spark has with it.
            jvm: Any = spark._jvm
            loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
            made = jvm.java.lang.Class.forName(driver, True, loader)
            settings = jvm.java.util.Properties()
            for name, value in {**TIMEOUTS, **properties}.items():
                settings.setProperty(name, value)
            connection = made.newInstance().connect(url, settings)
            if connection is None:
                raise DatabaseFailed(f"{driver} does not know the URL {where}; correct it")
            connection.setAutoCommit(False)
        except Py4JJavaError as error:
            raise failure(error, where, secrets) from None
        return cls(connection, where, secrets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What was not committed is taken back."""
        try:
            self._connection.close()
        except Py4JJavaError as error:
            raise failure(error, self._where, self._secrets) from None

    def run(self, sql: str, *texts: str) -> int:
        """The number of rows that it changed."""
        return int(self._do(sql, texts, lambda statement: statement.executeUpdate()))

    def rows(self, sql: str, *texts: str) -> list[tuple[str, ...]]:
        """Columns as text; for a few rows."""
        return list(self._do(sql, texts, _fetched))

    def commit(self) -> None:
        try:
            self._connection.commit()
        except Py4JJavaError as error:
            raise failure(error, self._where, self._secrets) from None

    def _do(self, sql: str, texts: tuple[str, ...], act: Any) -> Any:
        try:
            statement = self._connection.prepareStatement(sql)
            try:
                for at, text in enumerate(texts, 1):
                    statement.setString(at, text)
                return act(statement)
            finally:
                statement.close()
        except Py4JJavaError as error:
            raise failure(error, self._where, self._secrets) from None


def _fetched(statement: Any) -> list[tuple[str, ...]]:
    found = statement.executeQuery()
    width = found.getMetaData().getColumnCount()
    rows = []
    while found.next():
        rows.append(tuple(found.getString(at) for at in range(1, width + 1)))
    return rows


def is_of_database(error: Py4JJavaError) -> bool:
    return any(map(_is_of_database, _causes(error)))


def _causes(error: Py4JJavaError) -> list[Any]:
    causes = [error.java_exception]
    while causes[-1].getCause() is not None:
        causes.append(causes[-1].getCause())
    return causes


def _is_of_database(cause: Any) -> bool:
    """Whether it is a java.sql.SQLException. Of an object in the JVM `hasattr` knows nothing."""
    return "getSQLState" in dir(cause)


def failure(error: Py4JJavaError, where: str, secrets: Collection[str]) -> DatabaseFailed:
    """What the database itself said, or else the innermost cause; with what to do, if known."""
    causes = _causes(error)
    told = [one for one in causes if _is_of_database(one)]
    cause = told[-1] if told else causes[-1]
    state = (cause.getSQLState() or "") if told else ""
    said = " ".join((cause.getMessage() or cause.getClass().getName()).split())
    said = redact(said, secrets)[:_LINE_CHARS_MAX].rstrip(" .")
    hint = _HINTS.get(state)
    return DatabaseFailed(f"{where}: {said}" + (f"; {hint}" if hint else ""), state)


def _without_settings(url: str) -> str:
    """Host and name; what follows may hold a password."""
    return redact(re.split(r"[?;]", url, maxsplit=1)[0], ())
