"""Kernels that numba compiles: whether it is there, and where the machine code is kept.

A module with kernels has a name that ends in `_numba.py`, and is imported only after a question:

    from ottla.spark import kernels

    if kernels.is_available():       # imports numba; says once when there is none
        from ottla.spark.decoding import rows_numba as rows
    else:
        from ottla.spark.decoding import rows_numpy as rows

and in that module

    from ottla.spark.kernels import BYTES, INT32S, READ_BYTES, kernel

    @kernel(f"int64({READ_BYTES}, int64, {BYTES})")
    def copy(source, pos, out): ...

Every kernel names its one signature. That compiles it at import (or loads it from the cache), and
makes the cache safe for many processes: numba numbers the files of a function by its signatures,
and two processes that add different ones at once could take each other's machine code.
`READ_*` also takes arrays over Arrow's buffers, which must not be written; numpy arrays must be
contiguous and aligned. numba checks no bounds: a kernel does.

An index that may be negative is looked at by numba each time, which keeps a copying loop from
becoming a vector's: with `np.uint64` positions 100 bytes take 11 ns instead of 57.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import platform
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ottla.spark.caches import private_directory

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

BYTES: Final = "uint8[::1]"
INT32S: Final = "int32[::1]"
INT64S: Final = "int64[::1]"
READ_BYTES: Final = "Array(uint8, 1, 'C', True)"
READ_INT32S: Final = "Array(int32, 1, 'C', True)"
READ_INT64S: Final = "Array(int64, 1, 'C', True)"

Function = TypeVar("Function", bound=Callable[..., Any])

# numba's setting of the directory belongs to the whole process: held while it is ours.
_decorating: Final = threading.Lock()


class NumbaMissing(UserWarning):
    """Records are decoded and encoded by numpy, which takes several times as long."""


@cache
def is_available() -> bool:
    """Whether numba can be used; once per process a warning says why not."""
    try:
        numba = _numba()
    except (ImportError, OSError) as error:
        # Also raised by a numba that is too old for the numpy beside it.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(
            f"numba cannot be used ({reason}): records are turned by numpy, which is slower; "
            "install ottla[spark] where the executors run",
            NumbaMissing,
            stacklevel=2,
        )
        return False
    # Whoever switches the compiler off for debugging would wait for ever without this.
    return not numba.config.DISABLE_JIT


def _numba() -> Any:
    # Importing it takes half a second, so only where records are decoded or encoded. It is not
    # typed throughout.
    return import_module("numba")


def kernel(signature: str) -> Callable[[Function], Function]:
    """Compiles a function for this one signature, without the GIL, or loads it from the cache."""

    def compile_it(function: Function) -> Function:
        numba = _numba()
        options = {"nogil": True, "error_model": "numpy"}
        directory = cache_directory()
        if directory is not None and _move_source(function, directory):
            with _decorating:
                directory_before = numba.config.CACHE_DIR
                numba.config.CACHE_DIR = str(directory)
                try:
                    return cast(Function, numba.njit(signature, cache=True, **options)(function))
                except (OSError, EOFError, pickle.UnpicklingError):
                    # A full disk, or files that a crash left empty: they are made anew next time.
                    shutil.rmtree(directory, ignore_errors=True)
                finally:
                    numba.config.CACHE_DIR = directory_before
        return cast(Function, numba.njit(signature, **options)(function))

    return compile_it


def _move_source(function: Any, directory: Path) -> bool:
    """Gives a kernel a file that stays where it is; whether that was possible.

    numba files machine code under the path of its source. An environment that Spark unpacks lies
    elsewhere for each application, and every one would compile for seconds what the last had.
    """
    module, code = function.__globals__, function.__code__
    try:
        source = module["__loader__"].get_data(code.co_filename)
        place = _copy(source, Path(code.co_filename).name, directory)
    except (AttributeError, KeyError, OSError):
        return False
    function.__code__ = code.replace(co_filename=str(place))
    return True


@cache
def _copy(source: bytes, name: str, directory: Path) -> Path:
    """A copy of a kernel's source, by its content; written whole or not at all."""
    place = directory / f"source-{hashlib.sha256(source).hexdigest()[:16]}" / name
    if not place.exists() or place.read_bytes() != source:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as half:
            half.write(source)
        Path(half.name).replace(place)
    return place


@cache
def kept_directory() -> Path | None:
    """Where the machine code is kept for other processes too; None: nowhere."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    first = Path(chosen) / "ottla" if chosen else None
    return private_directory(f"kernels-{_fingerprint()}", first)


@cache
def cache_directory() -> Path | None:
    """Where this process keeps the machine code; None when nothing here can be written."""
    directory = kept_directory()
    if directory is not None:
        return directory
    try:
        directory = Path(tempfile.mkdtemp(prefix="ottla-kernels-"))
    except OSError:
        return None
    atexit.register(_remove_own, directory, os.getpid())
    return directory


def _fingerprint() -> str:
    """Names all that the machine code depends on.

    numba looks at a kernel's own file only, and not at the files of the functions it calls; and a
    home on a network is shared by machines whose processors differ.
    """
    processor = import_module("llvmlite.binding")
    digest = hashlib.sha256()
    for part in (_numba().__version__, sys.version, platform.machine()):
        digest.update(part.encode() + b"\0")
    digest.update(processor.get_host_cpu_name().encode() + b"\0")
    digest.update(processor.get_host_cpu_features().flatten().encode() + b"\0")
    for room in _rooms_with_kernels():
        for source in sorted(room, key=lambda one: one.name):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _rooms_with_kernels() -> list[list[Traversable]]:
    """Their sources, and those of their neighbours, whose constants are in the machine code too."""
    # Not by path: the package may be in an archive.
    rooms = [room for room in files(__package__).iterdir() if room.is_dir()]
    sources = [
        [one for one in room.iterdir() if one.name.endswith(".py")]
        for room in sorted(rooms, key=lambda one: one.name)
    ]
    return [room for room in sources if any(one.name.endswith("_numba.py") for one in room)]


def _remove_own(directory: Path, pid: int) -> None:
    # A forked child leaves it to the process that made it.
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
