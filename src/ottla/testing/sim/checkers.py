"""What must be true of a cluster in the end, held against what its clients were told. Pure.

Each checker yields a line for everything that is wrong; `check_all` raises the first few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ottla.testing.sim.history import ACKS_ALL, History, Sent, TopicState
from ottla.types import NO_OFFSET, TopicPartition

TOLD_MAX: Final = 5


class Broken(AssertionError):
    """Promises that were not kept."""


class Stored(NamedTuple):
    """A batch in a log."""

    offset: int
    next_offset: int
    epoch: int
    checksum: int
    # By offset; empty for logs whose records are not the load's.
    values: tuple[tuple[int, bytes], ...] = ()


class FinalLog(NamedTuple):
    """A replica's log when everything stands still."""

    node: int
    name: TopicPartition
    start: int
    high_watermark: int
    batches: tuple[Stored, ...]

    @property
    def committed(self) -> tuple[Stored, ...]:
        return tuple(batch for batch in self.batches if batch.next_offset <= self.high_watermark)


class Outcome(NamedTuple):
    """What is there when the faults are over and the cluster has come to rest."""

    logs: Sequence[FinalLog]
    # By node: a line for each fact of its metadata.
    metadata: Mapping[int, Sequence[str]] = {}
    topics: Mapping[str, TopicState] = {}
    # What each group's coordinator answers.
    offsets: Mapping[tuple[str, TopicPartition], int] = {}


Checker = Callable[[History, Outcome], Iterator[str]]


def check_all(history: History, outcome: Outcome) -> None:
    wrong: list[str] = []
    for checker in CHECKERS:
        for line in checker(history, outcome):
            wrong.append(line)
            if len(wrong) >= TOLD_MAX:
                raise Broken("; ".join(wrong))
    if wrong:
        raise Broken("; ".join(wrong))


# ------------------------------------------------------------------------------------- messages


def nothing_lost(history: History, outcome: Outcome) -> Iterator[str]:
    """What was acknowledged with acks=all is where it was said to be, on every replica."""
    logs = _values_by_log(outcome)
    by_value = _offsets_by_value(outcome)
    for sent in _batches(history):
        if sent.acks != ACKS_ALL or not sent.is_acknowledged:
            continue
        if sent.offset is None:
            if sent.values[0] not in by_value.get(sent.partition, {}):
                yield f"{sent} was acknowledged and is not there"
            continue
        for node, values in logs.get(sent.partition, {}).items():
            for place, value in enumerate(sent.values, sent.offset):
                if values.get(place) != value:
                    found = "nothing" if place not in values else _told(values[place])
                    yield (
                        f"{sent} was acknowledged at {sent.offset}: "
                        f"node {node} has {found} at {place}"
                    )
                    break


def none_twice(history: History, outcome: Outcome) -> Iterator[str]:
    for partition, by_value in _offsets_by_value(outcome).items():
        for value, offsets in by_value.items():
            sent = history.sent.get(value)
            if sent is None:
                yield f"{partition}: nobody sent what is at {offsets[0]}: {_told(value)}"
            elif sent.partition != partition:
                yield f"{partition}: {sent} is at {offsets[0]}"
            elif sent.is_idempotent and len(offsets) > 1:
                yield f"{sent} is stored at {' and '.join(map(str, offsets))}"


def in_order(history: History, outcome: Outcome) -> Iterator[str]:
    """Per producer and partition; of an idempotent producer nothing is left out before the last."""
    by_value = _offsets_by_value(outcome)
    lanes: dict[tuple[str, TopicPartition], list[Sent]] = {}
    for sent in _batches(history):
        if sent.acks == ACKS_ALL:
            lanes.setdefault((sent.producer, sent.partition), []).append(sent)
    for (producer, partition), batches in lanes.items():
        places = by_value.get(partition, {})
        last, last_number, missing = -1, -1, None
        for sent in sorted(batches, key=lambda sent: sent.number):
            offsets = [places[value][0] for value in sent.values if value in places]
            if not offsets:
                missing = sent.number if missing is None else missing
                continue
            if sent.is_idempotent and missing is not None:
                yield f"{partition}: {producer} has stored {sent.number} without {missing}"
                break
            if offsets != sorted(offsets) or offsets[0] <= last:
                yield (
                    f"{partition}: {producer} has stored {sent.number} at {offsets[0]}, "
                    f"and {last_number} at {last}"
                )
                break
            last, last_number = offsets[-1], sent.number


def one_value_per_offset(history: History, outcome: Outcome) -> Iterator[str]:
    """On all replicas, as far as they say that it is committed."""
    there: dict[tuple[TopicPartition, int], tuple[int, Stored]] = {}
    for log in outcome.logs:
        for batch in log.committed:
            node, known = there.setdefault((log.name, batch.offset), (log.node, batch))
            if (known.checksum, known.epoch, known.next_offset) != (
                batch.checksum,
                batch.epoch,
                batch.next_offset,
            ):
                yield (
                    f"{log.name}: offset {batch.offset} is one batch on node {node} (epoch "
                    f"{known.epoch}) and another on node {log.node} (epoch {batch.epoch})"
                )
    for (name, offset, epoch), checksums in history.batches.items():
        if len(checksums) > 1:
            yield f"{name}: two batches were at offset {offset} under the one epoch {epoch}"


def no_holes(history: History, outcome: Outcome) -> Iterator[str]:
    """Every log is a row of batches from its start on, and epochs only rise in it."""
    for log in outcome.logs:
        at, epoch = log.start, -1
        for batch in log.batches:
            if batch.next_offset <= log.start:
                continue
            if batch.offset > at:
                yield f"{log.name} on node {log.node}: a hole, {batch.offset} follows on {at}"
                break
            if batch.epoch < epoch:
                yield f"{log.name} on node {log.node}: epoch {batch.epoch} follows on {epoch}"
                break
            at, epoch = batch.next_offset, batch.epoch
        else:
            if at < log.high_watermark:
                yield (
                    f"{log.name} on node {log.node}: ends at {at}, its high watermark is "
                    f"{log.high_watermark}"
                )


# -------------------------------------------------------------------------------------- readers


def reads_stay(history: History, outcome: Outcome) -> Iterator[str]:
    """What was read is in the log for ever, at that place."""
    logs = _values_by_log(outcome)
    for read in history.reads:
        for offset, _, value in read.records:
            for node, values in logs.get(read.partition, {}).items():
                if values.get(offset) != value:
                    found = "nothing" if offset not in values else _told(values[offset])
                    yield (
                        f"{read.partition}: {read.reader} read {_told(value)} at {offset}, "
                        f"node {node} has {found}"
                    )
                    break


def polls_go_on(history: History, outcome: Outcome) -> Iterator[str]:
    """A reader gets every offset once, in order, and never more than is committed."""
    next_offsets: dict[tuple[str, TopicPartition], int] = {}
    for read in history.reads:
        lane = (read.reader, read.partition)
        for offset, _, _ in read.records:
            expected = next_offsets.get(lane, 0)
            if offset != expected:
                how = "goes back" if offset < expected else "skips"
                yield (
                    f"{read.partition}: {read.reader} {how}, {offset} comes instead of {expected}"
                )
            if offset >= read.high_watermark != NO_OFFSET:
                yield (
                    f"{read.partition}: {read.reader} got {offset}, the high watermark is "
                    f"{read.high_watermark}"
                )
            next_offsets[lane] = offset + 1


def high_watermarks_never_go_back(history: History, outcome: Outcome) -> Iterator[str]:
    """In front of a reader, whoever leads. Who does not know it says nothing of it."""
    told: dict[tuple[str, TopicPartition], int] = {}
    for read in history.reads:
        if read.high_watermark == NO_OFFSET:
            continue
        lane = (read.reader, read.partition)
        before = told.get(lane, 0)
        if read.high_watermark < before:
            yield (
                f"{read.partition}: {read.reader} was told the high watermark {before}, and then "
                f"{read.high_watermark}"
            )
        told[lane] = read.high_watermark


def ends_never_go_back(history: History, outcome: Outcome) -> Iterator[str]:
    for (watcher, partition), ends in history.ends.items():
        for before, after in pairwise(ends):
            if after < before:
                yield f"{partition}: {watcher} was told the end {before}, and then {after}"
                break


# ------------------------------------------------------------------------------------ the cluster


def one_leader_per_epoch(history: History, outcome: Outcome) -> Iterator[str]:
    leaders: dict[tuple[str, int], int] = {}
    for lead in history.leads:
        first = leaders.setdefault((lead.what, lead.epoch), lead.node)
        if first != lead.node:
            yield f"{lead.what}: nodes {first} and {lead.node} both led epoch {lead.epoch}"


def metadata_equal(history: History, outcome: Outcome) -> Iterator[str]:
    nodes = sorted(outcome.metadata)
    for node in nodes[1:]:
        ours, theirs = list(outcome.metadata[nodes[0]]), list(outcome.metadata[node])
        if ours != theirs:
            differing = next(
                (
                    f"{one} / {other}"
                    for one, other in zip(ours, theirs, strict=False)
                    if one != other
                ),
                f"{len(ours)} facts / {len(theirs)}",
            )
            yield f"the metadata of nodes {nodes[0]} and {node} differ: {differing}"


def topics_as_answered(history: History, outcome: Outcome) -> Iterator[str]:
    for name, topic in history.topics.items():
        found = outcome.topics.get(name)
        if found not in topic.possible:
            yield f"topic {name}: one of {topic.possible} was answered, found {found}"
    for name in outcome.topics:
        if name not in history.topics and not name.startswith("__"):
            yield f"topic {name}: nobody has made it"


# ----------------------------------------------------------------------------------------- groups


def offsets_kept(history: History, outcome: Outcome) -> Iterator[str]:
    for answer in history.offset_answers:
        if answer.offset not in answer.possible:
            yield (
                f"group {answer.group}: was told {answer.offset} for {answer.partition}, "
                f"possible were {answer.possible}"
            )
    for (group, partition), commits in history.commits.items():
        found = outcome.offsets.get((group, partition), -1)
        if found not in commits.possible:
            yield (
                f"group {group}: {partition} was committed at {commits.answered}, {found} is found"
            )


def generations_rise(history: History, outcome: Outcome) -> Iterator[str]:
    """A member's later join belongs to a later generation."""
    last: dict[tuple[str, str], int] = {}
    for join in history.joins:
        before = last.get((join.group, join.member), -1)
        if join.generation < before:
            yield f"group {join.group}: {join.member} joins {join.generation} after {before}"
        last[join.group, join.member] = join.generation


def no_complaints(history: History, outcome: Outcome) -> Iterator[str]:
    yield from history.complaints


CHECKERS: Final[tuple[Checker, ...]] = (
    nothing_lost,
    none_twice,
    in_order,
    one_value_per_offset,
    no_holes,
    reads_stay,
    polls_go_on,
    high_watermarks_never_go_back,
    ends_never_go_back,
    one_leader_per_epoch,
    metadata_equal,
    topics_as_answered,
    offsets_kept,
    generations_rise,
    no_complaints,
)


# --------------------------------------------------------------------------------------- looking


def _batches(history: History) -> list[Sent]:
    return list(dict.fromkeys(history.sent.values()))


def _load_logs(outcome: Outcome) -> Iterator[FinalLog]:
    for log in outcome.logs:
        if not log.name.topic.startswith("__"):
            yield log


def _values_by_log(outcome: Outcome) -> dict[TopicPartition, dict[int, dict[int, bytes]]]:
    """By partition and node: the committed value at each offset."""
    logs: dict[TopicPartition, dict[int, dict[int, bytes]]] = {}
    for log in _load_logs(outcome):
        values = {offset: value for batch in log.committed for offset, value in batch.values}
        logs.setdefault(log.name, {})[log.node] = values
    return logs


def _offsets_by_value(outcome: Outcome) -> dict[TopicPartition, dict[bytes, list[int]]]:
    """Where each value is, in the longest log of its partition."""
    longest: dict[TopicPartition, FinalLog] = {}
    for log in _load_logs(outcome):
        known = longest.get(log.name)
        if known is None or log.high_watermark > known.high_watermark:
            longest[log.name] = log
    found: dict[TopicPartition, dict[bytes, list[int]]] = {}
    for name, log in longest.items():
        by_value = found.setdefault(name, {})
        for batch in log.committed:
            for offset, value in batch.values:
                by_value.setdefault(value, []).append(offset)
    return found


def _told(value: bytes) -> str:
    return value.rstrip(b".").decode(errors="replace")
