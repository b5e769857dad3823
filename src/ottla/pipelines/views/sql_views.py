"""SQL views: which names a query uses, what is wrong with it, and its frame.

Spark's own analyser is asked, again and again, until it misses no name any more. So CTEs,
subqueries, aliases and quoted names mean here what they mean to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.pipelines.language.model import Sql
from ottla.pipelines.language.problems import Place, Problem
from ottla.pipelines.views.spark_errors import place_of, problem_in

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

# Only a query can follow this, so that no command is ever run while a file is looked at.
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
