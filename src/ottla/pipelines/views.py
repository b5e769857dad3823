"""SQL views: which names a query uses, what is wrong with it, and its frame.

Spark's own analyser is asked, again and again, until it misses no name any more. So CTEs,
subqueries, aliases and quoted names mean here what they mean to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.pipelines.model import Source, Sql, View
from ottla.pipelines.problems import Place, Problem
from ottla.pipelines.sql_errors import place_of, problem_in
from ottla.spark.spelling import nearest

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

# Only a query can stand behind this, so that no command is ever run while a file is looked at.
TRIAL: Final = "ottla_trial"
BEFORE_TRIAL: Final = f"CREATE OR REPLACE TEMPORARY VIEW {TRIAL} AS\n"
NAMES_MAX: Final = 1000

NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
QUOTED_NAME: Final = re.compile(r"`((?:[^`]|``)*)`")


class BadView(Exception):
    """A view that cannot be made; without a problem when something else is to blame for it."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


# Makes the source or view of this name known to Spark; raises BadView.
Provide = Callable[[str, Place], None]


def sql_frame(spark: SparkSession, sql: Sql, *, subject: str, provide: Provide) -> DataFrame:
    """The query's frame. `provide` is called for each name that Spark misses, in its order."""
    from pyspark.errors import AnalysisException

    try:
        _resolve_names(spark, sql, subject, provide)
    finally:
        spark.catalog.dropTempView(TRIAL)
    try:
        return spark.sql(sql.text)
    except AnalysisException as error:
        raise BadView(problem_in(sql, error, subject=subject)) from None


def _resolve_names(spark: SparkSession, sql: Sql, subject: str, provide: Provide) -> None:
    from pyspark.errors import AnalysisException

    asked: set[str] = set()
    for _ in range(NAMES_MAX):
        try:
            spark.sql(BEFORE_TRIAL + sql.text)
        except AnalysisException as error:
            name = _missing_name(error)
            if name is not None and name not in asked:
                asked.add(name)
                provide(name, place_of(sql, error, shift=len(BEFORE_TRIAL)))
                continue
            # Two columns of one name are no matter to a query, if to a stored view.
            if error.getCondition() == "COLUMN_ALREADY_EXISTS":
                return
            problem = problem_in(sql, error, subject=subject, shift=len(BEFORE_TRIAL))
            raise BadView(problem) from None
        return
    raise BadView(Problem(f"{subject}: it uses more than {NAMES_MAX} names", sql.place))


def _missing_name(error: AnalysisException) -> str | None:
    if error.getCondition() != NOT_FOUND:
        return None
    text = (error.getMessageParameters() or {}).get("relationName", "")
    parts = [part.replace("``", "`") for part in QUOTED_NAME.findall(text)]
    return ".".join(parts) if parts else text


def column_type(frame: DataFrame, name: str) -> DataType | None:
    """The type of a column, which may be written in upper or lower case; None: there is none."""
    by_lower = {field.name.lower(): field.dataType for field in frame.schema.fields}
    return by_lower.get(name.lower())


def time_problems(what: Source | View, frame: DataFrame) -> list[Problem]:
    """What is wrong with the columns that watermark and deduplicate name."""
    subject = f"{'view' if isinstance(what, View) else 'source'} {what.name}"
    found: list[Problem] = []

    def tell(text: str) -> None:
        found.append(Problem(f"{subject}: {text}", what.place))

    if what.watermark is not None:
        kind = column_type(frame, what.watermark.column)
        if kind is None:
            tell(f"watermark: {no_column(frame, what.watermark.column)}")
        elif not _is_time(kind):
            tell(
                f"watermark: {what.watermark.column} is {kind.simpleString()}; it must be a "
                "timestamp: change the schema, or CAST it in a view and put the watermark there"
            )
    for name in what.deduplicate:
        kind = column_type(frame, name)
        if kind is None:
            tell(f"deduplicate: {no_column(frame, name)}")
        elif not is_comparable(kind):
            tell(f"deduplicate: {name} is {kind.simpleString()}, which Spark cannot compare")
    return found


def no_column(frame: DataFrame, name: str) -> str:
    near = nearest(name, frame.columns) or f"; there are {', '.join(frame.columns)}"
    return f"there is no column {name}{near}"


def is_comparable(kind: DataType) -> bool:
    """Can Spark say that two such values are the same? Not of maps, nor of what holds one."""
    return not re.search(r"\b(map|variant)\b", kind.simpleString())


def is_plain(kind: DataType) -> bool:
    """One value that has a text of its own."""
    return kind.typeName() not in ("struct", "array", "map", "variant", "void")


def _is_time(kind: DataType) -> bool:
    """A timestamp, or the window that a view has made of one."""
    return kind.simpleString() in ("timestamp", "struct<start:timestamp,end:timestamp>")
