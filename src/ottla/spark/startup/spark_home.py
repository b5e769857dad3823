"""Spark as PySpark brings it, but for the archive in which it has itself once more.

Every Python process that Spark starts finds `pyspark.zip` first, in which nothing is compiled: most
of a second of processor time before it does anything, for each kind of worker. Without it they find
the same modules where they are installed, compiled. That is right where all of them run with the
driver's own Python: on this machine.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ottla.spark.caches import private_directory

# What spark-submit needs of it.
PARTS: Final = ("bin", "jars")


def spark_home() -> Path | None:
    """For SPARK_HOME; None where PySpark is installed in another way, or nothing can be written.

    It stays where it is: what Java keeps about Spark's classes holds for one place only.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    real = Path(found.origin).parent
    if not all((real / part).is_dir() for part in PARTS):
        return None
    cache = private_directory("spark")
    if cache is None:
        return None
    home = cache / f"home-{hashlib.sha256(str(real).encode()).hexdigest()[:16]}"
    try:
        home.mkdir(exist_ok=True)
        for part in PARTS:
            # Another process may be at it; and what tidies caches may have left half of it.
            with suppress(FileExistsError):
                (home / part).symlink_to(real / part)
    except OSError:
        return None
    return home if all((home / part).is_dir() for part in PARTS) else None
