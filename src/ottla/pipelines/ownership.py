"""Who writes the dead letters of a source: of the streams that read it one, and always the same.

Sinks that share a source read it each for itself, and each finds its bad records. The first in the
file that reads it as a stream owns its letters; `pipeline.json` remembers that, so that another
order of the sinks changes nothing. The others pass over bad records, which they count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.fingerprints import Document, identity
from ottla.pipelines.model import Source
from ottla.pipelines.sources import Letters, has_letters

if TYPE_CHECKING:
    from ottla.pipelines.graph import Flow

LETTERS: Final = "letters"
FROM: Final = "from"


def owners(streams: Sequence[Flow], old: Document | None) -> dict[str, Document]:
    """For each source with dead letters that is read as a stream: who owns them, and what it is."""
    found: dict[str, Document] = {}
    for source, readers in _readers(streams).values():
        known = _known(source, streams, old) or {}
        owner = known.get("owner")
        name = owner if owner in [flow.name for flow in readers] else readers[0].name
        found[source.name] = {**known, "owner": name, "reads": identity(source)}
    return found


def letters_of(flow: Flow, owned: Mapping[str, Document]) -> dict[str, Letters]:
    """What this flow writes, by source."""
    return {
        source.name: Letters(owned[source.name].get(FROM, {}))
        for source in flow.sources
        if owned.get(source.name, {}).get("owner") == flow.name
    }


def tables(flows: Sequence[Flow]) -> list[Source]:
    """Sources with dead letters that are no streams: their letters are written once in a run."""
    found = {
        source.name: source
        for flow in flows
        for source in flow.sources
        if has_letters(source) and not is_stream(source)
    }
    return list(found.values())


def is_stream(source: Source) -> bool:
    return getattr(source, "read", "stream") == "stream"


def _readers(streams: Sequence[Flow]) -> dict[str, tuple[Source, list[Flow]]]:
    found: dict[str, tuple[Source, list[Flow]]] = {}
    for flow in streams:
        for source in flow.sources:
            if has_letters(source) and is_stream(source):
                found.setdefault(source.name, (source, []))[1].append(flow)
    return found


def _known(source: Source, streams: Sequence[Flow], old: Document | None) -> dict[str, Any] | None:
    """What was noted for it, under this name or under the one that it had then."""
    noted: Mapping[str, Document] = {} if old is None else old.get(LETTERS, {})
    if source.name in noted:
        return noted[source.name]
    still_there = {one.name for flow in streams for one in flow.sources}
    renamed = (
        one
        for name, one in noted.items()
        if name not in still_there and one["reads"] == identity(source)
    )
    return next(renamed, None)
