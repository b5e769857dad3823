"""What clients of a simulated cluster were told, and what was seen of its nodes, in order.

Nothing here judges: `checkers` holds it against the logs that are there in the end. Everything that
is noted goes into a digest as well, by which two runs of one seed are compared.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ottla.types import TopicPartition

ACKS_ALL = -1


@dataclass(eq=False)
class Sent:
    """A batch that a producer was given, and what it was told of it."""

    producer: str
    partition: TopicPartition
    number: int
    values: tuple[bytes, ...]
    acks: int
    is_idempotent: bool
    # Where it was acknowledged; None with `is_acknowledged` when the leader did not say where.
    offset: int | None = None
    is_acknowledged: bool = False

    def __str__(self) -> str:
        kind = "idempotent " if self.is_idempotent else ""
        return f"batch {self.number} of {kind}{self.producer} to {self.partition}"


class Read(NamedTuple):
    """What one answer gave to a reader that had asked from `position` on."""

    reader: str
    partition: TopicPartition
    position: int
    # NO_OFFSET where the leader did not say.
    high_watermark: int
    # Offset, leader epoch and value of each record.
    records: tuple[tuple[int, int, bytes], ...]


@dataclass
class Commits:
    """The offsets that a group has committed for one partition; each is larger than the last."""

    answered: int = -1
    # Sent, and not answered for good: each of them may be the one that is stored.
    unanswered: list[int] = field(default_factory=list)

    def next(self) -> int:
        return 1 + max((self.answered, *self.unanswered))

    @property
    def possible(self) -> tuple[int, ...]:
        return (self.answered, *self.unanswered)


class OffsetAnswer(NamedTuple):
    """What a group was told of its offset, and what it could have been told."""

    group: str
    partition: TopicPartition
    offset: int
    possible: tuple[int, ...]


class Join(NamedTuple):
    """A member was told that it belongs to a generation."""

    group: str
    member: str
    generation: int


@dataclass(frozen=True)
class TopicState:
    partitions: int
    configs: tuple[tuple[str, str], ...] = ()


@dataclass
class TopicHistory:
    """What may be under a topic's name: one thing, or more where an answer is missing."""

    name: str
    possible: list[TopicState | None] = field(default_factory=lambda: [None])

    @property
    def is_certain(self) -> bool:
        return len(self.possible) == 1

    @property
    def state(self) -> TopicState | None:
        return self.possible[0]


class Lead(NamedTuple):
    """A node was seen to lead something in an epoch."""

    what: str
    epoch: int
    node: int


class History:
    """Of one run. `now_s` is the virtual clock."""

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self._now_s = now_s
        self._digest = hashlib.sha256()
        self.sent: dict[bytes, Sent] = {}
        self.reads: list[Read] = []
        # By who watches and the partition: each end that it was told.
        self.ends: dict[tuple[str, TopicPartition], list[int]] = {}
        self.commits: dict[tuple[str, TopicPartition], Commits] = {}
        self.offset_answers: list[OffsetAnswer] = []
        self.joins: list[Join] = []
        self.topics: dict[str, TopicHistory] = {}
        self.leads: dict[Lead, None] = {}
        # By log, offset and epoch: the checksums of the batches that were seen there.
        self.batches: dict[tuple[str, int, int], set[int]] = {}
        # What a producer was told that no cluster may tell it.
        self.complaints: list[str] = []
        self.refusals: Counter[str] = Counter()
        self.messages_acknowledged = 0
        self.acknowledged_at_s: list[float] = []

    @property
    def digest(self) -> str:
        """Equal for two runs in which the same was noted in the same order at the same times."""
        return self._digest.hexdigest()

    def note(self, *facts: object) -> None:
        self._digest.update(f"{self._now_s():.9f} {facts!r}\n".encode())

    # ------------------------------------------------------------------------------- producers

    def send(self, sent: Sent) -> None:
        self.note("send", sent.producer, sent.partition, sent.number)
        for value in sent.values:
            assert value not in self.sent, f"{value!r} is sent twice"
            self.sent[value] = sent

    def acknowledge(self, sent: Sent, offset: int) -> None:
        self.note("acknowledged", sent.producer, sent.partition, sent.number, offset)
        if sent.is_acknowledged and sent.offset not in (None, offset) and sent.is_idempotent:
            self.complain(f"{sent}, stored at {sent.offset}, is acknowledged at {offset}")
        if not sent.is_acknowledged:
            self.messages_acknowledged += len(sent.values)
            if sent.acks == ACKS_ALL:
                self.acknowledged_at_s.append(self._now_s())
        sent.is_acknowledged = True
        sent.offset = offset if offset >= 0 else sent.offset

    def refuse(self, sent: Sent, error: str) -> None:
        self.note("refused", sent.producer, sent.partition, sent.number, error)
        self.refusals[error] += 1

    def complain(self, text: str) -> None:
        self.note("complaint", text)
        self.complaints.append(text)

    # --------------------------------------------------------------------------------- readers

    def read(self, read: Read) -> None:
        self.note(*read)
        self.reads.append(read)

    def see_end(self, watcher: str, partition: TopicPartition, end: int) -> None:
        """Only changes are kept: an idle partition is asked for its end very often."""
        self.note("end", watcher, partition, end)
        ends = self.ends.setdefault((watcher, partition), [])
        if not ends or ends[-1] != end:
            ends.append(end)

    # ---------------------------------------------------------------------------------- groups

    def commits_of(self, group: str, partition: TopicPartition) -> Commits:
        return self.commits.setdefault((group, partition), Commits())

    def begin_commit(self, group: str, partition: TopicPartition) -> int:
        commits = self.commits_of(group, partition)
        value = commits.next()
        commits.unanswered.append(value)
        self.note("commit", group, partition, value)
        return value

    def end_commit(
        self, group: str, partition: TopicPartition, value: int, *, is_taken: bool
    ) -> None:
        """Taken, or refused for good: what may still come is never told here."""
        self.note("committed", group, partition, value, is_taken)
        commits = self.commits_of(group, partition)
        commits.unanswered.remove(value)
        if is_taken:
            commits.answered = max(commits.answered, value)

    def fetch_offset(
        self, group: str, partition: TopicPartition, offset: int, possible: Iterable[int]
    ) -> None:
        """`possible` was so when it was asked; what was committed meanwhile may be told, too."""
        self.note("offset", group, partition, offset)
        now = self.commits_of(group, partition).possible
        self.offset_answers.append(
            OffsetAnswer(group, partition, offset, tuple(dict.fromkeys((*possible, *now))))
        )

    def join(self, join: Join) -> None:
        self.note(*join)
        self.joins.append(join)

    # ---------------------------------------------------------------------------------- topics

    def topic(self, name: str) -> TopicHistory:
        return self.topics.setdefault(name, TopicHistory(name))

    def begin_change(self, name: str, state: TopicState | None) -> None:
        """Until it is answered both may be true."""
        self.note("change", name, state)
        self.topic(name).possible.append(state)

    def end_change(self, name: str) -> None:
        self.note("changed", name)
        topic = self.topic(name)
        topic.possible = topic.possible[-1:]

    # ----------------------------------------------------------------------- seen of the nodes

    def lead(self, lead: Lead) -> None:
        if lead not in self.leads:
            self.note(*lead)
            self.leads[lead] = None

    def see_batch(self, log: str, offset: int, epoch: int, checksum: int) -> None:
        self.batches.setdefault((log, offset, epoch), set()).add(checksum)

    # ---------------------------------------------------------------------------------- figures

    @property
    def elections(self) -> int:
        return len({(lead.what, lead.epoch) for lead in self.leads})

    def longest_pause_s(self, from_s: float, to_s: float) -> float:
        """Between two acknowledgements of anybody's acks=all, between these times."""
        moments = [from_s, *(at for at in self.acknowledged_at_s if from_s < at < to_s), to_s]
        return max((after - before for before, after in pairwise(moments)), default=0.0)
