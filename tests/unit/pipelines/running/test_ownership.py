"""Who writes the letters of a source, and from where on, by what checkpoints say; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from ottla.pipelines.language.model import BadRecords, TopicSource
from ottla.pipelines.language.problems import Place
from ottla.pipelines.running import ownership
from ottla.pipelines.running.checkpoints import COMMITS, OFFSETS, Local
from ottla.pipelines.running.fingerprints import Document
from ottla.pipelines.running.handover import hand_over
from ottla.pipelines.running.lag import Offsets
from ottla.pipelines.running.ownership import HandOver, owners
from ottla.pipelines.sources.kinds import identity
from ottla.pipelines.views.graph import Flow
from ottla.types import TopicPartition

NOBODY = cast(Any, None)
DEAD = BadRecords("dead_letter", "dead")


def source(name: str = "orders", topic: str = "orders") -> TopicSource:
    place = Place(Path("p.yaml"), 1, 1)
    return TopicSource(name=name, place=place, topics=(topic,), schema="id INT", bad_records=DEAD)


def flow(name: str, *sources: TopicSource) -> Flow:
    return Flow(name, NOBODY, NOBODY, sources or (source(),))


def noted(of: TopicSource, owner: str, **more: Any) -> Document:
    return {"owner": owner, "reads": identity(of), **more}


class Checkpoint:
    """A directory with Spark's logs in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.store = Local(path)

    def batch(self, flow: str, number: int, *ends: dict[str, int], is_done: bool = True) -> None:
        """One that ends there in the first partitions of the topics, for each source that reads."""
        lines = [json.dumps({topic: {"0": end} for topic, end in one.items()}) for one in ends]
        self._write(flow, OFFSETS, number, ["v1", '{"batchWatermarkMs":0}', *lines])
        if is_done:
            self._write(flow, COMMITS, number, ["v1", '{"nextBatchWatermarkMs":0}'])

    def _write(self, flow: str, log: str, number: int, lines: list[str]) -> None:
        where = self._path / flow / log
        where.mkdir(parents=True, exist_ok=True)
        (where / str(number)).write_text("\n".join(lines))


class Reread:
    """What is read once more for its letters, in the place of Spark."""

    def __init__(self, **ends: int) -> None:
        self.ranges: list[tuple[dict[str, int], dict[str, int]]] = []
        self._ends = {TopicPartition(topic, 0): end for topic, end in ends.items()}

    def ends(self, source: TopicSource, reached: Offsets) -> Offsets:
        return self._ends

    def catch_up(self, source: TopicSource, start: Offsets, end: Offsets) -> None:
        self.ranges.append((by_topic(start), by_topic(end)))


def by_topic(offsets: Offsets) -> dict[str, int]:
    return {partition.topic: offset for partition, offset in offsets.items()}


def handed_over(
    checkpoint: Checkpoint, change: HandOver, starts: Document | None = None, end: int = 1000
) -> tuple[Reread, Document, list[str]]:
    reread, told = Reread(orders=end), list[str]()
    document = {"letters": {change.source.name: {}}, "starts": starts or {}}
    hand_over(change, document, checkpoint.store, cast(Any, reread), told.append)
    return reread, document["letters"][change.source.name], told


def test_letters_begin_anew_when_their_owner_has_come_to_where_the_former_ended(
    tmp_path: Path,
) -> None:
    """Else they would be missing from a topic that is made anew under the same name."""
    checkpoint, streams = Checkpoint(tmp_path), [flow("more")]
    since = {"orders": {"0": 1000}}
    old = {"flows": {}, "letters": {"orders": noted(source(), "more", **{"from": since})}}
    checkpoint.batch("more", 0, {"orders": 400})
    found, _ = owners(streams, old, checkpoint.store)
    assert found["orders"]["from"] == since
    checkpoint.batch("more", 1, {"orders": 1000}, is_done=False)
    found, _ = owners(streams, old, checkpoint.store)
    assert found["orders"]["from"] == since
    checkpoint.batch("more", 1, {"orders": 1000})
    found, changes = owners(streams, old, checkpoint.store)
    assert (found, changes) == ({"orders": noted(source(), "more")}, [])


def test_a_former_owner_that_never_finished_a_batch_has_done_nothing(tmp_path: Path) -> None:
    """Its sink never worked, so it was taken out; the other has read on meanwhile."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.batch("out", 0, {"orders": 40}, is_done=False)
    checkpoint.batch("more", 0, {"orders": 40})
    checkpoint.batch("more", 1, {"orders": 100})
    old = {"flows": {}, "letters": {"orders": noted(source(), "out")}}
    _, (change,) = owners([flow("more")], old, checkpoint.store)
    reread, letters, told = handed_over(checkpoint, change)
    assert reread.ranges == [({"orders": 0}, {"orders": 100})]
    assert letters["from"] == {"orders": {"0": 100}}
    assert "reading 100 messages again" in told[0]


def test_a_former_owner_that_never_finished_a_batch_had_its_beginning(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.batch("out", 0, {"orders": 40}, is_done=False)
    checkpoint.batch("more", 0, {"orders": 100})
    begun = {"start": "latest", "reads": identity(source()), "offsets": {"orders": {"0": 30}}}
    old = {
        "flows": {},
        "letters": {"orders": noted(source(), "out")},
        "starts": {"out": {"orders": begun}},
    }
    _, (change,) = owners([flow("more")], old, checkpoint.store)
    reread, _, _ = handed_over(checkpoint, change)
    assert reread.ranges == [({"orders": 30}, {"orders": 100})]


def test_of_a_topic_that_the_new_owner_reads_twice_the_further_place_counts(
    tmp_path: Path,
) -> None:
    """One of its sources is there already, and will not come to what lies between."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.batch("out", 0, {"orders": 10})
    checkpoint.batch("more", 0, {"orders": 50}, {"orders": 80})
    reread, letters, _ = handed_over(checkpoint, HandOver(source(), "out", "more"))
    assert reread.ranges == [({"orders": 10}, {"orders": 80})]
    assert letters["from"] == {"orders": {"0": 80}}


def test_of_a_topic_that_the_former_owner_read_twice_the_nearer_place_counts(
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.batch("out", 0, {"orders": 50}, {"orders": 10})
    partition = TopicPartition("orders", 0)
    done = ownership.reached(checkpoint.store, "out", source(), log=COMMITS)
    assert done == {partition: 10}


def test_letters_of_a_topic_made_anew_begin_with_it(tmp_path: Path) -> None:
    """The former owner was further in the topic that had this name before."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.batch("out", 0, {"orders": 800})
    checkpoint.batch("more", 0, {"orders": 20})
    reread, letters, _ = handed_over(checkpoint, HandOver(source(), "out", "more"), end=50)
    assert reread.ranges == [({"orders": 0}, {"orders": 20})]
    assert letters["from"] == {"orders": {"0": 20}}


def test_an_owner_that_begins_anew_and_later_leaves_nothing_between(tmp_path: Path) -> None:
    """Its folder was deleted, and `latest` is now; the others have still to come there."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.batch("more", 0, {"orders": 40})
    checkpoint.batch("third", 0, {"orders": 30})
    streams = [flow("out"), flow("more"), flow("third"), flow("new")]
    old = {"flows": {}, "letters": {"orders": noted(source(), "out")}}
    found, (change,) = owners(streams, old, checkpoint.store)
    assert found == {"orders": noted(source(), "out")}
    begun = {"start": "latest", "reads": identity(source()), "offsets": {"orders": {"0": 70}}}
    reread, letters, told = handed_over(checkpoint, change, {"out": {"orders": begun}})
    assert reread.ranges == [({"orders": 30}, {"orders": 70})]
    assert letters == {}
    assert told == [
        "flow out begins anew; reading 40 messages again for the dead letters of source orders, "
        "from where the other flows are"
    ]
    # From the first record on it finds them all by itself.
    reread, _, told = handed_over(checkpoint, change)
    assert (reread.ranges, told) == ([], [])
    checkpoint.batch("out", 0, {"orders": 70})
    assert owners(streams, old, checkpoint.store)[1] == []


def test_sources_that_change_their_names_with_each_other_keep_their_owners(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    a, b = source("a", "first"), source("b", "second")
    old = {"flows": {}, "letters": {"a": noted(a, "out"), "b": noted(b, "more")}}
    streams = [flow("more", source("a", "second")), flow("new", source("b", "first")),
               flow("out", source("b", "first"))]  # fmt: skip
    found, changes = owners(streams, old, checkpoint.store)
    assert {name: one["owner"] for name, one in found.items()} == {"a": "more", "b": "out"}
    assert changes == []


def test_two_sources_of_one_topic_that_are_both_renamed_keep_their_owners(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    old = {
        "flows": {},
        "letters": {"a": noted(source("a"), "out"), "b": noted(source("b"), "more")},
    }
    streams = [flow("out", source("c")), flow("more", source("d"))]
    found, changes = owners(streams, old, checkpoint.store)
    assert {name: one["owner"] for name, one in found.items()} == {"c": "out", "d": "more"}
    assert changes == []


def test_a_source_of_another_topic_has_no_owner_yet(tmp_path: Path) -> None:
    """The one that is noted has read another topic under this name."""
    old = {"flows": {}, "letters": {"orders": noted(source(), "gone")}}
    elsewhere = source("orders", "orders.v2")
    found, changes = owners([flow("out", elsewhere)], old, Checkpoint(tmp_path).store)
    assert (found, changes) == ({"orders": noted(elsewhere, "out")}, [])
