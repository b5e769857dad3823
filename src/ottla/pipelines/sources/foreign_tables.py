"""What other systems say when their tables cannot be read, in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.pipelines.language.model import Source
from ottla.pipelines.language.problems import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JAVA_TRACE: Final = re.compile(r"\n\s*at .*", re.DOTALL)
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")


def loaded(source: Source, what: str, load: Callable[[], DataFrame]) -> DataFrame:
    """Spark asks for the columns at once, so here is where a database that is away is noticed."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return load()
    except PySparkException as wrong:
        reason = str(wrong).strip().partition("\n")[0]
    except Py4JJavaError as wrong:
        text = _JAVA_TRACE.sub("", str(wrong.java_exception.toString()))
        reason = " ".join(_JAVA_CLASS.sub("", text).split())
    raise PipelineFailed(f"source {source.name}: cannot read {what}: {reason}")
