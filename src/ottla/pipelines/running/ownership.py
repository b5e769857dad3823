"""Who writes the dead letters of a source: of the streams that read it one, and always the same.

Sinks that share a source read it each for itself, and each finds its bad records. The first in the
file that reads it as a stream owns its letters; `pipeline.json` remembers that, so that another
order of the sinks changes nothing. The others pass over bad records, which they count. When the
owner leaves the file, the next one goes on where it has ended (`handover.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.pipelines.language.model import Source, TopicSource
from ottla.pipelines.running.checkpoints import COMMITS, OFFSETS, Store
from ottla.pipelines.running.fingerprints import Document
from ottla.pipelines.running.lag import Offsets, offsets_of
from ottla.pipelines.running.starts import STARTS
from ottla.pipelines.sources.contract import Letters
from ottla.pipelines.sources.kinds import has_letters, identity, is_stream
from ottla.spark.offsets import from_document, to_document

if TYPE_CHECKING:
    from ottla.pipelines.views.graph import Flow

LETTERS: Final = "letters"
FROM: Final = "from"


@dataclass(frozen=True)
class HandOver:
    """The letters of a source go from a flow that is gone to one that is there.

    Or from a checkpoint of the owner's that is gone to one that it will have.
    """

    source: Source
    former: str
    owner: str
    # Where the former began, of which its own log says nothing; empty: at the first record.
    begun: Offsets = field(default_factory=dict)
    # Where the owner begins anew: the other readers, which go on.
    others: Sequence[str] = ()


def owners(
    streams: Sequence[Flow], old: Document | None, store: Store
) -> tuple[dict[str, Document], list[HandOver]]:
    """For each source with dead letters that is read as a stream: who owns them, and what it is."""
    found: dict[str, Document] = {}
    changes: list[HandOver] = []
    for source, readers in _readers(streams).values():
        names = [flow.name for flow in readers]
        known = _known(source, names, streams, old)
        former = known.get("owner") or _of_its_own(source, old)
        owner = former if former in names else names[0]
        found[source.name] = {"owner": owner, "reads": identity(source)}
        if former is not None and former != owner:
            changes.append(HandOver(source, former, owner, _begun(former, source, old)))
        elif isinstance(source, TopicSource):
            ahead = _ahead(known.get(FROM, {}), owner, source, store)
            found[source.name] |= {FROM: ahead} if ahead else {}
            others = [name for name in names if name != owner and store.has_flow(name)]
            if others and not store.has_flow(owner):
                changes.append(HandOver(source, owner, owner, others=others))
    return found, changes


def _ahead(since: Document, owner: str, source: TopicSource, store: Store) -> Document:
    """Of where an owner's letters begin what it has still to come to.

    What it has passed is forgotten: a topic of this name may be made anew, and begin at 0. So it is
    where the owner has no checkpoint.
    """
    if not since or not store.has_flow(owner):
        return {}
    done = reached(store, owner, source, log=COMMITS) or {}
    return to_document(
        {one: offset for one, offset in from_document(since).items() if done.get(one, 0) < offset}
    )


def _begun(flow: str, source: Source, old: Document | None) -> Offsets:
    starts = {} if old is None else old.get(STARTS, {})
    noted = starts.get(flow, {}).get(source.name, {})
    return {one: max(at, 0) for one, at in from_document(noted.get("offsets", {})).items()}


def _of_its_own(source: Source, old: Document | None) -> str | None:
    """Once each source's letters were a flow of their own."""
    name = f"{source.name}.dead"
    return name if old is not None and name in old["flows"] else None


def reached(store: Store, flow: str, source: TopicSource, *, log: str) -> Offsets | None:
    """Where the last batch of a log ends in the source's topics; None where nobody knows.

    Where a flow reads a topic twice: the place before which both are done, or after which neither
    has begun.
    """
    one_of = min if log == COMMITS else max
    batches = store.batches(flow, log)
    ends = store.batches(flow, OFFSETS) if batches else {}
    if not batches or max(batches) not in ends:
        return None
    found: Offsets = {}
    for line in ends[max(batches)].splitlines():
        for partition, offset in (_offsets_of(line) or {}).items():
            if partition.topic in source.topics:
                found[partition] = one_of(offset, found.get(partition, offset))
    return found


def _offsets_of(line: str) -> Offsets | None:
    try:
        return offsets_of(json.loads(line))
    except ValueError:
        # The first line is a version.
        return None


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


def _readers(streams: Sequence[Flow]) -> dict[str, tuple[Source, list[Flow]]]:
    found: dict[str, tuple[Source, list[Flow]]] = {}
    for flow in streams:
        for source in flow.sources:
            if has_letters(source) and is_stream(source):
                found.setdefault(source.name, (source, []))[1].append(flow)
    return found


def _known(
    source: Source, readers: Sequence[str], streams: Sequence[Flow], old: Document | None
) -> Document:
    """What was noted for it, under this name or under the one that it had then."""
    noted: Mapping[str, Document] = {} if old is None else old.get(LETTERS, {})
    if _is_of(noted.get(source.name), source):
        return noted[source.name]
    taken = {
        one.name for flow in streams for one in flow.sources if _is_of(noted.get(one.name), one)
    }
    renamed = [one for name, one in noted.items() if name not in taken and _is_of(one, source)]
    # Several may read the same topic: then the one whose letters a reader of this one writes.
    return next((one for one in renamed if one["owner"] in readers), next(iter(renamed), {}))


def _is_of(noted: Document | None, source: Source) -> bool:
    return noted is not None and bool(noted["reads"] == identity(source))
