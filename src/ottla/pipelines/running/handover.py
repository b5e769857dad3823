"""When the flow that wrote a source's dead letters has left the file, another goes on for it.

What the former has finished is in its checkpoint. The new owner writes letters from there on. Where
it has come further already, what lies between is read once more, for its letters alone; that is
done before the new owner is noted, so that a crash repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.pipelines.language.model import TopicSource
from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.running.causes import cause_of
from ottla.pipelines.running.checkpoints import COMMITS, OFFSETS, Store
from ottla.pipelines.running.fingerprints import Document
from ottla.pipelines.running.lag import Offsets
from ottla.pipelines.running.ownership import FROM, LETTERS, HandOver, reached
from ottla.pipelines.running.starts import STARTS
from ottla.spark.offsets import from_document, to_document

if TYPE_CHECKING:
    from ottla.pipelines.running.flows import FlowFactory


def hand_over(
    change: HandOver,
    noted: Document,
    store: Store,
    factory: FlowFactory,
    tell: Callable[[str], None],
) -> None:
    """Notes where the new owner's letters begin; raises PipelineFailed."""
    source, owner = change.source, change.owner
    if change.others and isinstance(source, TopicSource):
        _begin_anew(change, source, noted, store, factory, tell)
        return
    whose = f"the dead letters of source {source.name} are now written by flow {owner}"
    done = None
    if isinstance(source, TopicSource):
        done = _done(change, source, store)
    if done is None or not isinstance(source, TopicSource):
        tell(
            f"{whose}; how far flow {change.former} came is not known, so letters of what only "
            f"{owner} has read are missing"
        )
        return
    with _in_one_line(change):
        done = _of_this_topic(done, factory.ends(source, done))
    begun = _begun(change, source, noted, store)
    between = {one: end for one, end in begun.items() if end > done.get(one, 0)}
    if between:
        count = _count(done, between)
        tell(f"{whose}; reading {count} messages again for theirs, to where {owner} is")
        _catch_up(change, source, done, between, factory)
    else:
        tell(f"{whose}, from where {change.former} has ended")
    since = {one: max(done.get(one, 0), begun.get(one, 0)) for one in done.keys() | begun.keys()}
    noted[LETTERS][source.name][FROM] = to_document(since)


def _begin_anew(
    change: HandOver,
    source: TopicSource,
    noted: Document,
    store: Store,
    factory: FlowFactory,
    tell: Callable[[str], None],
) -> None:
    """What the other readers have still to come to, and the owner will not read any more."""
    found = [reached(store, other, source, log=COMMITS) or {} for other in change.others]
    begun = _begun(change, source, noted, store)
    done = {one: min(offsets.get(one, 0) for offsets in found) for one in begun}
    between = {one: end for one, end in begun.items() if end > done[one]}
    if between:
        tell(
            f"flow {change.owner} begins anew; reading {_count(done, between)} messages again for "
            f"the dead letters of source {source.name}, from where the other flows are"
        )
        _catch_up(change, source, done, between, factory)


def _catch_up(
    change: HandOver, source: TopicSource, start: Offsets, end: Offsets, factory: FlowFactory
) -> None:
    with _in_one_line(change):
        factory.catch_up(source, {one: start.get(one, 0) for one in end}, end)


@contextmanager
def _in_one_line(change: HandOver) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Spark raises many kinds of these.
        raise PipelineFailed(
            f"source {change.source.name}: its dead letters cannot be handed over to flow "
            f"{change.owner}: {cause_of(error).text}"
        ) from error


def _count(start: Offsets, end: Offsets) -> int:
    return sum(offset - start.get(one, 0) for one, offset in end.items())


def _of_this_topic(done: Offsets, ends: Offsets) -> Offsets:
    """What lies beyond the end was done in another topic, which had this name before."""
    return {one: 0 if offset > ends.get(one, offset) else offset for one, offset in done.items()}


def _done(change: HandOver, source: TopicSource, store: Store) -> Offsets | None:
    """What the former has finished. Without a checkpoint nobody knows; one that has begun its first
    batch, and no more, is where it began."""
    done = reached(store, change.former, source, log=COMMITS)
    if done is None and not store.batches(change.former, COMMITS):
        return change.begun if store.batches(change.former, OFFSETS) else None
    return done


def _begun(change: HandOver, source: TopicSource, noted: Document, store: Store) -> Offsets:
    """What the new owner will not read again for certain: a batch that it has begun may be in its
    sink already, and is passed over then."""
    found = reached(store, change.owner, source, log=OFFSETS)
    if found is not None:
        return found
    start = noted[STARTS].get(change.owner, {}).get(source.name)
    offsets = {} if start is None else from_document(start["offsets"])
    return {one: offset for one, offset in offsets.items() if offset > 0}
