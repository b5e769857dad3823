"""Columns of a frame: their names for Spark, their types, and what can be done with them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.spark.spelling import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def quote(name: str) -> str:
    """A column's name for Spark, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def column_type(frame: DataFrame, name: str) -> DataType | None:
    """The type of a column, which may be written in upper or lower case; None: there is none."""
    by_lower = {field.name.lower(): field.dataType for field in frame.schema.fields}
    return by_lower.get(name.lower())


def no_column(frame: DataFrame, name: str) -> str:
    near = nearest(name, frame.columns) or f"; there are {', '.join(frame.columns)}"
    return f"there is no column {name}{near}"


def is_comparable(kind: DataType) -> bool:
    """Can Spark say that two such values are the same? Not of maps, nor of what holds one."""
    return not re.search(r"\b(map|variant)\b", kind.simpleString())


def is_plain(kind: DataType) -> bool:
    """One value that has a text of its own."""
    return kind.typeName() not in ("struct", "array", "map", "variant", "void")
