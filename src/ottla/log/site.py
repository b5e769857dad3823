"""The directory of a partition, and removing segments from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.log.handles import Handles
from ottla.log.segment import (
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    path_of,
)
from ottla.log.unsynced import Unsynced
from ottla.log.values import LogConfig, LogPosition
from ottla.ports import Disk

_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)


@dataclass(frozen=True, slots=True)
class Site:
    """A partition's directory and what it takes to work in it."""

    disk: Disk
    handles: Handles
    directory: str
    config: LogConfig
    now_ms: int
    # Somebody opens many logs and syncs the whole file system before any of them is believed.
    is_synced_together: bool = False

    def make_durable(self, unsynced: Unsynced, position: LogPosition) -> None:
        """Blocking."""
        if self.is_synced_together:
            unsynced.let_go()
        else:
            unsynced.sync(position)

    def path(self, offset: int, suffix: str) -> str:
        return path_of(self.directory, offset, suffix)

    def remove_segment(self, segment: Segment) -> None:
        """Blocking. Its snapshot goes too: it is the state before the segment."""
        for handle in segment.handles():
            self.handles.drop(handle)
        for suffix in _SUFFIXES:
            self.disk.remove(segment.path(suffix))

    def set_aside(self, segment: Segment) -> list[str]:
        """Renames the files of a segment; returns those that are to be removed later."""
        for handle in segment.handles():
            self.handles.drop(handle)
        renamed = []
        for suffix in _SUFFIXES:
            path = segment.path(suffix)
            try:
                self.disk.rename(path, path + DELETED)
            except FileNotFoundError:
                continue
            renamed.append(path + DELETED)
        return renamed

    def cut(self, segments: Sequence[Segment], position: LogPosition) -> None:
        """Blocking: no byte after `position` is left, durably."""
        for segment in reversed(segments):
            if segment.base_offset > position.segment_base:
                self.remove_segment(segment)
            elif segment.base_offset == position.segment_base and segment.is_created:
                # Of these, too, some bytes may be nowhere but in memory: they are made anew.
                for suffix in (OFFSET_INDEX, TIME_INDEX):
                    self.disk.remove(segment.path(suffix))
                file = self.disk.open(segment.handle.path)
                try:
                    file.truncate(position.bytes_in_segment)
                    file.sync()
                finally:
                    file.close()
        self.disk.sync_directory(self.directory)
