"""CRC-32C, without the rest of its package.

`import crc32c` looks up its own version through `importlib.metadata`, for which every start of the
broker would pay 40 ms of CPU; the function itself is in an extension module that loads alone in 1.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Final, cast

from ottla.wire.schema import Buffer

Checksum = Callable[[Buffer], int]


def _load() -> Checksum:
    package = PathFinder.find_spec("crc32c")
    places = package.submodule_search_locations if package else None
    extension = PathFinder.find_spec("crc32c._crc32c", places) if places else None
    if extension is None or extension.loader is None:
        from crc32c import crc32c as whole_package

        return whole_package
    module = module_from_spec(extension)
    extension.loader.exec_module(module)
    return cast(Checksum, module.crc32c)


crc32c: Final = _load()
