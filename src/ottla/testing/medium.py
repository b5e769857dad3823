"""What a disk in memory consists of: files and directories, as seen and as they are on the medium.

Of everything that was not synced, a crash may take any part: of a file sectors, of a directory the
last names, or, where the file system keeps no order, any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final, TypeAlias

SECTOR_BYTES: Final = 512

Change: TypeAlias = Callable[[bytearray], None]


def write_change(position: int, data: bytes) -> Change:
    def change(contents: bytearray) -> None:
        if len(contents) < position:
            contents.extend(bytes(position - len(contents)))
        contents[position : position + len(data)] = data

    return change


def resize_change(size: int) -> Change:
    def change(contents: bytearray) -> None:
        del contents[size:]
        contents.extend(bytes(size - len(contents)))

    return change


def sectors(position: int, data: bytes) -> Iterable[tuple[int, bytes]]:
    start = 0
    while start < len(data):
        stop = start + SECTOR_BYTES - (position + start) % SECTOR_BYTES
        yield position + start, data[start:stop]
        start = stop


class Inode:
    """Contents as seen, contents as they are on the medium, and the changes in between."""

    def __init__(self, data: bytes = b"") -> None:
        self.seen = bytearray(data)
        self.stored = bytearray(data)
        self.unsynced: list[Change] = []
        # Changes that are no longer in `unsynced`: on the medium, or lost.
        self._gone = 0
        self.modified_ms = 0

    def change(self, change: Change, parts: Iterable[Change] = ()) -> None:
        change(self.seen)
        self.unsynced += parts or [change]

    @property
    def change_count(self) -> int:
        """How many changes there have ever been."""
        return self._gone + len(self.unsynced)

    def sync(self, change_count: int | None = None) -> None:
        """The first so many changes are on the medium, or all."""
        count = self.change_count if change_count is None else change_count
        while self._gone < count and self.unsynced:
            self.unsynced.pop(0)(self.stored)
            self._gone += 1

    def lose_unsynced(self) -> None:
        """After a failed sync the pages look clean: seen by all, and never written."""
        self._gone += len(self.unsynced)
        self.unsynced = []

    def after_crash(self, random: Random) -> Inode:
        keep = random.choice((0.0, 1.0, 0.5, random.random()))
        stored = bytearray(self.stored)
        for change in self.unsynced:
            if random.random() < keep:
                change(stored)
        # The size may be on disk before the data; then there are zeros.
        if self.unsynced and random.random() < 0.2 and len(self.seen) > len(stored):
            stored.extend(bytes(random.randint(0, len(self.seen) - len(stored))))
        inode = Inode(bytes(stored))
        inode.modified_ms = self.modified_ms
        return inode


class Directory:
    """Names as seen, names on the medium, and the changes in between, in their order."""

    def __init__(self) -> None:
        self.seen: Names = {}
        self.stored: Names = {}
        self.unsynced: list[Callable[[Names], object]] = []

    def change(self, change: Callable[[Names], object]) -> None:
        change(self.seen)
        self.unsynced.append(change)

    def put(self, name: str, node: Node) -> None:
        def change(names: Names) -> None:
            names[name] = node

        self.change(change)

    def move(self, source: str, target: str) -> None:
        def change(names: Names) -> None:
            if source in names:
                names[target] = names.pop(source)

        self.change(change)

    def sync(self) -> None:
        for change in self.unsynced:
            change(self.stored)
        self.unsynced = []

    def after_crash(
        self, random: Random, survivors: dict[Node, Node], *, in_order: bool
    ) -> Directory:
        names = dict(self.stored)
        for change in self.unsynced:
            if random.random() < (0.8 if in_order else 0.6):
                change(names)
            elif in_order:
                break
        after = Directory()
        for name, node in names.items():
            if node not in survivors:
                survivors[node] = (
                    node.after_crash(random)
                    if isinstance(node, Inode)
                    else node.after_crash(random, survivors, in_order=in_order)
                )
            after.seen[name] = survivors[node]
        after.stored = dict(after.seen)
        return after


Node: TypeAlias = Inode | Directory
Names: TypeAlias = dict[str, Node]
