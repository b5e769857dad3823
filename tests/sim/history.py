"""What clients were told, and what has to be true after a power cut because of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ottla.testing.disks import MemoryDisk
from ottla.wire.records import BATCH_HEADER_BYTES, BatchHeader, crc_matches, headers_in, read_header

# A broker stamps offset and leader epoch before this place in a batch, and changes nothing after.
STAMPED_BYTES = 17
METADATA_DIRECTORY = "__cluster_metadata-0"


class Broken(AssertionError):
    """A promise that was not kept."""


@dataclass(eq=False)
class Sent:
    """A batch that a client has sent, and what it knows of it."""

    lane: Lane
    number: int
    data: bytes
    count: int
    acks: int
    sequence: int = -1
    offset: int | None = None
    is_promised: bool = False
    is_acked: bool = False

    @property
    def body(self) -> bytes:
        return self.data[STAMPED_BYTES:]

    def __str__(self) -> str:
        sequence = f", sequence {self.sequence}" if self.sequence >= 0 else ""
        return f"batch {self.number} of {self.lane.name} (acks={self.acks}{sequence})"


@dataclass(eq=False)
class Lane:
    """The batches of one producer for one partition, in the order in which they were sent."""

    name: str
    partition: PartitionHistory
    producer_id: int = -1
    producer_epoch: int = -1
    next_sequence: int = 0
    sent: list[Sent] = field(default_factory=list)

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id >= 0

    def unacked(self) -> list[Sent]:
        return [sent for sent in self.sent if not sent.is_acked]

    def repeatable(self) -> list[Sent]:
        """Those whose repetition a broker has to know: the last five that are stored."""
        return [sent for sent in self.sent if sent.is_promised and sent.offset is not None][-5:]


class Found(NamedTuple):
    """A batch that is in the log."""

    header: BatchHeader
    body: bytes


def batches_in(data: bytes | bytearray | memoryview) -> list[Found]:
    return [
        Found(header, bytes(data[at + STAMPED_BYTES : at + header.size]))
        for at, header in headers_in(data)
    ]


class PartitionHistory:
    def __init__(self, topic: str, topic_id: bytes, index: int, *, is_cached: bool) -> None:
        self.name = f"{topic}-{index}"
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        # With write.caching nothing is promised of a power cut, until a start has found it.
        self.is_cached = is_cached
        self.given: dict[bytes, Sent] = {}
        self.lanes: list[Lane] = []
        self.seen: dict[int, Found] = {}
        self.shown_end = 0
        self.start_answered = 0
        self.start_asked = 0
        self.leader_epoch = -1

    # ---------------------------------------------------------------------- what clients are told

    def acknowledge(self, sent: Sent, offset: int) -> None:
        if sent.acks == -1:
            if sent.is_promised and sent.offset not in (None, offset):
                raise Broken(
                    f"{self.name}: {sent}, stored at {sent.offset}, is acknowledged at {offset}"
                )
            sent.is_promised |= not self.is_cached
        sent.is_acked = True
        sent.offset = offset

    def believe(self, sent: Sent) -> None:
        """As librdkafka: what comes before an acknowledged sequence must be stored."""
        sent.is_acked = sent.is_promised = True

    def show(self, batches: list[Found], high_watermark: int) -> None:
        """A consumer was given these, and this end."""
        if self.is_cached:
            return
        self.shown_end = max(self.shown_end, high_watermark)
        for found in batches:
            before = self.seen.setdefault(found.header.base_offset, found)
            if (before.body, before.header.leader_epoch) != (found.body, found.header.leader_epoch):
                raise Broken(f"{self.name}: offset {found.header.base_offset} is read differently")

    # ------------------------------------------------------------------------- what is found

    def check(self, start: int, end: int, batches: list[Found]) -> None:
        """Holds the log that a new broker serves against all that was told before the cut."""
        if start < self.start_answered:
            raise Broken(f"{self.name}: deleted up to {self.start_answered}, begins at {start}")
        if start > self.start_asked:
            raise Broken(
                f"{self.name}: begins at {start}, nobody deleted beyond {self.start_asked}"
            )
        if end < self.shown_end:
            raise Broken(f"{self.name}: ends at {end}, consumers were shown {self.shown_end}")
        self._check_row(start, end, batches)
        stored = self._check_origin(batches)
        self._check_promises(start, {found.header.base_offset: found for found in batches})
        self._check_order(start, stored)
        self._take_over(start, end, batches, stored)

    def _check_row(self, start: int, end: int, batches: list[Found]) -> None:
        at, epoch = start, 0
        for position, (header, _) in enumerate(batches):
            is_next = header.base_offset <= at if position == 0 else header.base_offset == at
            if not is_next:
                raise Broken(f"{self.name}: a hole, {header.base_offset} follows on {at}")
            if header.leader_epoch < epoch:
                raise Broken(f"{self.name}: epoch {header.leader_epoch} follows on {epoch}")
            at, epoch = header.next_offset, header.leader_epoch
        if at != end:
            raise Broken(f"{self.name}: the batches end at {at}, the log at {end}")

    def _check_origin(self, batches: list[Found]) -> dict[Sent, int]:
        stored: dict[Sent, int] = {}
        for header, body in batches:
            sent = self.given.get(body)
            if sent is None:
                raise Broken(f"{self.name}: nobody sent what is at {header.base_offset}")
            if sent in stored:
                raise Broken(
                    f"{self.name}: {sent} is stored twice, at {stored[sent]} and "
                    f"{header.base_offset}"
                )
            stored[sent] = header.base_offset
        return stored

    def _check_promises(self, start: int, by_offset: dict[int, Found]) -> None:
        for sent in self.given.values():
            if sent.is_promised and sent.offset is not None and sent.offset >= start:
                found = by_offset.get(sent.offset)
                if found is None or found.body != sent.body:
                    raise Broken(
                        f"{self.name}: {sent} was acknowledged at {sent.offset} and is not there"
                    )
        for offset, before in self.seen.items():
            if offset >= start:
                now = by_offset.get(offset)
                if now is None or now.body != before.body:
                    raise Broken(f"{self.name}: what consumers saw at {offset} is not there")
                if now.header.leader_epoch != before.header.leader_epoch:
                    raise Broken(f"{self.name}: the epoch at {offset} is another one")

    def _check_order(self, start: int, stored: dict[Sent, int]) -> None:
        for lane in self.lanes:
            numbers = [sent.number for sent in stored if sent.lane is lane]
            if numbers != sorted(numbers):
                raise Broken(f"{self.name}: the batches of {lane.name} are out of order")
            if lane.is_idempotent and start == 0 and numbers != list(range(len(numbers))):
                missing = sorted(set(range(max(numbers))) - set(numbers))
                raise Broken(f"{self.name}: {lane.name} has stored {numbers} without {missing}")
            for sent in lane.sent:
                # Believed to be stored, without an offset.
                if sent.is_promised and sent.offset is None and not start and sent not in stored:
                    raise Broken(f"{self.name}: {sent} counts as delivered and is not there")

    def _take_over(
        self, start: int, end: int, batches: list[Found], stored: dict[Sent, int]
    ) -> None:
        """What a start has found stays; what it has not found never comes back."""
        self.start_answered = self.start_asked = start
        self.shown_end = end
        self.seen = {found.header.base_offset: found for found in batches}
        for sent, offset in stored.items():
            sent.offset, sent.is_promised = offset, True
        for lane in self.lanes:
            if not lane.is_idempotent:
                lane.sent = [sent for sent in lane.sent if sent in stored]
        self.given = {
            body: sent
            for body, sent in self.given.items()
            if sent in stored or sent.lane.is_idempotent
        }


@dataclass(frozen=True)
class TopicState:
    """A topic as it was asked for; its id is not known before the answer."""

    partitions: int
    configs: tuple[tuple[str, str], ...]
    id: bytes | None = None

    def with_configs(self, **changes: str) -> TopicState:
        configs = dict(self.configs) | {k.replace("_", "."): v for k, v in changes.items()}
        return replace(self, configs=tuple(sorted(configs.items())))

    @property
    def is_cached(self) -> bool:
        return dict(self.configs).get("write.caching") == "true"


class NameHistory:
    """What may be under a topic's name: one thing, or two while an answer is missing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.possible: list[TopicState | None] = [None]
        self.partitions: list[PartitionHistory] = []
        # Batches on their way: whose name is given to another topic meanwhile, ends up there.
        self.under_way = 0

    @property
    def is_certain(self) -> bool:
        return len(self.possible) == 1

    def arrived(self) -> None:
        self.under_way -= 1

    def settle(self, state: TopicState | None) -> None:
        """From now on it is this."""
        self.possible = [state]
        if state is None:
            self.partitions = []
            return
        assert state.id is not None
        if self.partitions and self.partitions[0].topic_id != state.id:
            self.partitions = []
        for index in range(len(self.partitions), state.partitions):
            history = PartitionHistory(self.name, state.id, index, is_cached=state.is_cached)
            self.partitions.append(history)

    def check(self, found: TopicState | None) -> None:
        """Against what a new broker says; `found` has the topic's own settings."""
        for state in self.possible:
            if state == found:
                break
            is_new = state is not None and state.id is None and found is not None
            if is_new and replace(state, id=found.id) == found:
                break
        else:
            raise Broken(f"topic {self.name}: one of {self.possible} was answered, found {found}")
        self.settle(found)


@dataclass
class Commits:
    """The offsets that a group has committed for one partition."""

    answered: int = -1
    unanswered: list[int] = field(default_factory=list)


class History:
    """Of one life, over all its cuts."""

    def __init__(self) -> None:
        self.names: dict[str, NameHistory] = {}
        self.commits: dict[tuple[str, str, int], Commits] = {}
        self.producer_ids: set[int] = set()
        self.cluster_id: str | None = None
        self.metadata_epoch = 0
        # By topic id or name, partition, offset, epoch: what a follower could have had.
        self._batches: dict[tuple[bytes, str, int, int], tuple[int, int]] = {}
        self.cuts = 0
        self.answers = 0
        self.batches_acked = 0

    def name(self, name: str) -> NameHistory:
        return self.names.setdefault(name, NameHistory(name))

    def take_producer_id(self, producer_id: int) -> None:
        if producer_id in self.producer_ids:
            raise Broken(f"producer id {producer_id} was given out before")
        self.producer_ids.add(producer_id)

    def win_epoch(self, epoch: int) -> None:
        if epoch <= self.metadata_epoch:
            raise Broken(f"epoch {epoch} of the metadata log is won after {self.metadata_epoch}")
        self.metadata_epoch = epoch

    def look_at(self, disk: MemoryDisk, *, under: str = "") -> None:
        """What is written now, a follower might have: no other batch may have that place.

        Not synced does not matter here: under one epoch an offset means one batch, for ever.
        """
        for path in disk.paths_seen():
            if path.endswith(".log") and path.startswith(under):
                self._look_at_log(disk, path)

    def _look_at_log(self, disk: MemoryDisk, path: str) -> None:
        directory, _, _ = path.rpartition("/")
        name = directory.rpartition("/")[2]
        topic_id = b""
        if name != METADATA_DIRECTORY:
            topic_id = disk.contents(f"{directory}/partition.metadata")
            if not topic_id.startswith(b"version: 0\ntopic_id: "):
                return
        data = disk.contents(path)
        at = 0
        while len(data) - at >= BATCH_HEADER_BYTES:
            header = read_header(data, at)
            if header.magic != 2 or not BATCH_HEADER_BYTES <= header.size <= len(data) - at:
                return
            if not crc_matches(data, at, header):
                return
            key = (topic_id, name, header.base_offset, header.leader_epoch)
            crc = (header.crc, header.count)
            if self._batches.setdefault(key, crc) != crc:
                raise Broken(
                    f"{name}: two batches were at offset {header.base_offset} under the one "
                    f"epoch {header.leader_epoch}"
                )
            if name == METADATA_DIRECTORY:
                self.metadata_epoch = max(self.metadata_epoch, header.leader_epoch)
            at += header.size
