"""Spark as PySpark brings it, but for the archive in which it has itself once more.

Every Python process that Spark starts finds `pyspark.zip` first, in which nothing is compiled: a
second of processor time before it does anything, for each query and each kind of worker. Without
it they find the same modules where they are installed, compiled.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pyspark

from spark.kit.toolchain import CACHE, locked

REAL = Path(pyspark.__file__).parent


def spark_home() -> Path:
    """For SPARK_HOME, where all workers run with this environment's Python."""
    key = hashlib.sha256(f"{REAL} {pyspark.__version__}".encode()).hexdigest()[:16]
    home = CACHE / f"home-{key}"
    with locked(CACHE / "home.lock"):
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                half = Path(scratch, "home")
                half.mkdir()
                for name in ("bin", "jars"):
                    (half / name).symlink_to(REAL / name)
                half.rename(home)
    return home
