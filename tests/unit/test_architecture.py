"""The table of rooms in ARCHITECTURE.md says what the imports say."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent.parent
PACKAGE = "ottla"
ROW = re.compile(r"^\| `(\w+)/` \| .* \| ([^|]*) \|$", re.MULTILINE)


def told() -> dict[str, set[str]]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return {name: set(re.findall(r"`(\w+)`", imports)) for name, imports in ROW.findall(text)}


def found() -> dict[str, set[str]]:
    """What the modules of each folder import of other folders and files of the package."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    rooms: defaultdict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        _, _, rest = module.partition(".")
        room, is_inside, _ = rest.partition(".")
        if room and (is_inside or (ROOT / "src" / PACKAGE / room).is_dir()):
            imported = {one.split(".")[1] for one in _imports(graph, module)}
            rooms[room] |= imported - {room}
    return dict(rooms)


def _imports(graph: grimp.ImportGraph, module: str) -> set[str]:
    return {one for one in graph.find_modules_directly_imported_by(module) if "." in one}


def test_the_table_of_rooms_is_what_the_imports_say() -> None:
    assert told() == found()
