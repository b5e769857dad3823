"""What the first commands would make in the background, made now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.launch import class_archive
from ottla.spark import kernels
from ottla.spark.startup.nursery import COMPILED, import_kernels
from ottla.spark.startup.spark_home import spark_home

KERNELS: Final = "Machine code of the kernels"
CLASSES: Final = "Java's archive of Spark's classes"

# Takes a line that a person is to see.
Say = Callable[[str], None]


def prepare(say: Say) -> None:
    """Both are left alone where they are; raises PipelineFailed."""
    _compile_kernels(say)
    _archive_classes(say)


def _compile_kernels(say: Say) -> None:
    directory = kernels.kept_directory() if kernels.is_available() else None
    if directory is None:
        raise PipelineFailed(
            f"{KERNELS}: numba is missing, or there is no directory that only you can write; "
            "pip install 'ottla[pipelines]', or set XDG_CACHE_HOME"
        )
    if (directory / COMPILED).exists():
        say(f"{KERNELS} is there: {directory}")
        return
    say(f"{KERNELS} is made …")
    begun = time.monotonic()
    import_kernels()
    (directory / COMPILED).touch()
    say(f"{KERNELS}: {directory}, {time.monotonic() - begun:.0f} s")


def _archive_classes(say: Say) -> None:
    theirs = os.environ.get("SPARK_HOME")
    if theirs and Path(theirs, "python").exists():
        say(f"{CLASSES} is not for a Spark of your own, which SPARK_HOME names: {theirs}")
        return
    home = spark_home()
    archive = class_archive.archive_of(home) if home is not None else None
    if home is None or archive is None:
        raise PipelineFailed(
            f"{CLASSES}: Java or PySpark is missing, or {class_archive.SWITCH}=off; install "
            "openjdk-17-jre-headless and 'ottla[pipelines]'"
        )
    if class_archive.java_options(home):
        say(f"{CLASSES} is there: {archive}")
        return
    say(f"{CLASSES} is made by a small pipeline, which takes a minute …")
    begun = time.monotonic()
    # An empty one says that it was tried, and is not tried again in the background.
    if archive.exists() and not archive.stat().st_size:
        archive.unlink(missing_ok=True)
    if not class_archive.make_now(home, archive):
        raise PipelineFailed(f"{CLASSES} was not made; commands go on without it")
    say(f"{CLASSES}: {archive}, {time.monotonic() - begun:.0f} s")
