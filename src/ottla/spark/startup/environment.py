"""The environment in which Spark on this machine starts its Python workers quickly."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ottla.spark.startup.nursery_process import start_nursery
from ottla.spark.startup.spark_home import spark_home

SCRATCH_PREFIX: Final = "ottla-spark-"


def quick_environment(given: Mapping[str, str]) -> dict[str, str]:
    """To be set before the JVM starts; empty where SPARK_HOME names another Spark."""
    home = given.get("SPARK_HOME") or spark_home()
    # A Spark that was installed by itself brings its own PySpark to its workers.
    if home is None or Path(home, "python").exists():
        return {}
    return {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, **start_nursery(scratch())}


@functools.cache
def scratch() -> Path:
    """For what Spark and Derby would leave where they run; it goes with the process."""
    path = tempfile.mkdtemp(prefix=SCRATCH_PREFIX)
    # A fork of this process leaves it alone.
    atexit.register(_remove, path, os.getpid())
    return Path(path)


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
