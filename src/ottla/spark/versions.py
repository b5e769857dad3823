"""The driver and its executors must run the same Ottla.

What travels between them is pickled, and a pickle that meets another version fails in a place that
tells nobody why, or works and means something else. So each carries the version it was made by,
outside of everything that could fail.
"""

from __future__ import annotations

import pickle
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from ottla.errors import OttlaError

# A package that was sent with --py-files has no metadata, and comes from the driver anyway.
UNKNOWN: Final = "unknown"


class VersionsDiffer(OttlaError):
    """Driver and executor have different versions of Ottla."""


@cache
def own_version() -> str:
    try:
        return version("ottla")
    except PackageNotFoundError:
        return UNKNOWN


class Shipped:
    """A base for what is pickled on the driver and used by the executors."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The state is bytes inside the pickle: it is not touched before the versions are compared.
        return unpack, (own_version(), pickle.dumps((type(self), self.__dict__)))


def unpack(made_by: str, packed: bytes) -> object:
    """The other end of `Shipped`. Its name and arguments stay as they are in all versions."""
    check(made_by, own_version())
    kind, state = pickle.loads(packed)
    shipped = kind.__new__(kind)
    shipped.__dict__.update(state)
    return shipped


def check(driver: str, executor: str) -> None:
    if UNKNOWN in (driver, executor) or driver == executor:
        return
    raise VersionsDiffer(
        f"the driver runs Ottla {driver}, this executor ({platform.node()}, {sys.executable}) runs "
        f"Ottla {executor}: install the same version on both"
    )
