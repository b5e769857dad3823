"""Completing what a crash interrupted while a compacted segment took its place.

Once a `.log.swap` is there it counts, and not what it was made from: of those some may have been
renamed already, and a log that is half old and half new would miss records or have them twice. So
nothing is compared. What the new segment covers goes, then it gets its name.
"""

from __future__ import annotations

from ottla.log.opening.listing import Found
from ottla.log.scan import batches
from ottla.log.segment import LOG, OFFSET_INDEX, SWAP, TIME_INDEX, TXN_INDEX
from ottla.log.site import Site


def complete_swaps(site: Site, found: Found) -> None:
    """Blocking, at open: a crash came after the point of no return."""
    for base_offset in found.swaps:
        swap = site.path(base_offset, LOG) + SWAP
        end_offset = _end_of(site, swap, base_offset)
        for segment in found.segments:
            if base_offset <= segment.base_offset < end_offset:
                site.disk.remove(segment.path(LOG))
                site.disk.remove(segment.path(OFFSET_INDEX))
                site.disk.remove(segment.path(TIME_INDEX))
                site.disk.remove(segment.path(TXN_INDEX))
        # Whose indexes these are, nobody can tell any more. They are built anew from the log.
        site.disk.remove(site.path(base_offset, OFFSET_INDEX))
        site.disk.remove(site.path(base_offset, TIME_INDEX))
        site.disk.remove(site.path(base_offset, TXN_INDEX))
        site.disk.sync_directory(site.directory)
        site.disk.rename(swap, site.path(base_offset, LOG))
    site.disk.sync_directory(site.directory)


def _end_of(site: Site, path: str, base_offset: int) -> int:
    """After the last batch: compaction leaves that one in every segment that had any."""
    end_offset = base_offset + 1
    file = site.disk.open(path)
    try:
        for _, header, _ in batches(file.read, 0, file.size()):
            end_offset = header.next_offset
    finally:
        file.close()
    return end_offset
