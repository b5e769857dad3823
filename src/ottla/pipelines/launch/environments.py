"""The Python of a cluster's executors: an environment packed into one file, and sent along.

Spark starts Python by one path everywhere. On the executors it leads into the archive that was
sent; on the driver, which plans reads in workers of its own, into the environment of this command.
So the driver's JVM is launched in a directory of its own where a link of that name is.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ottla.pipelines.language.problems import PipelineFailed

NAME: Final = "ottla-environment"
PYTHON: Final = f"./{NAME}/bin/python"
SUFFIX: Final = ".tar.gz"
ARCHIVES: Final = "spark.archives"
# Spark brings its own pyspark; the others are for commands and compilers.
LEFT_OUT: Final = ("*/site-packages/pyspark/*", "*/include/*", "*/pip/*")
# Numbers and code are hardly smaller for more effort.
COMPRESS_LEVEL: Final = 1


def pack(prefix: Path, target: Path) -> int:
    """The environment at `prefix` as an archive for --environment; its size in bytes."""
    import venv_pack

    if not target.name.endswith(SUFFIX):
        # Spark unpacks a plain .tar with code of its own, which fails at links.
        raise PipelineFailed(f"{target}: call it …{SUFFIX}, which is what Spark can unpack")
    half = target.with_name(f".{target.name}.half{SUFFIX}")
    try:
        environment = venv_pack.Env(str(prefix))
        for pattern in LEFT_OUT:
            environment = environment.exclude(pattern)
        environment.pack(output=str(half), force=True, compress_level=COMPRESS_LEVEL)
        half.replace(target)
    except venv_pack.VenvPackException as error:
        said = " ".join(str(error).split())
        raise PipelineFailed(
            f"{prefix} cannot be packed: {said}; make an environment for it: python -m venv "
            "environment, environment/bin/pip install 'ottla[spark]', then --prefix environment"
        ) from None
    except OSError as error:
        raise PipelineFailed(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        half.unlink(missing_ok=True)
    return target.stat().st_size


def settings(archive: str, given: Mapping[str, str]) -> dict[str, str]:
    """What sends the archive to the executors, beside the file's own archives."""
    others = [
        one if ":/" in one else os.path.abspath(one)
        for one in filter(None, given.get(ARCHIVES, "").split(","))
    ]
    return {ARCHIVES: ",".join([*others, f"{archive}#{NAME}"])}


def variables() -> dict[str, str]:
    return {"PYSPARK_PYTHON": PYTHON}


@contextmanager
def launching(directory: Path) -> Iterator[None]:
    """While the JVM is launched: it stays where it was started, and finds this Python there."""
    directory.mkdir(exist_ok=True)
    link = directory / NAME
    if not link.is_symlink():
        link.symlink_to(sys.prefix, target_is_directory=True)
    # For a source that Spark finds by itself it would win over PYSPARK_PYTHON, on executors too.
    os.environ.pop("PYSPARK_DRIVER_PYTHON", None)
    with contextlib.chdir(directory):
        yield
