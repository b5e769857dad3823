"""Dead letters go back to the topic they came from, after a fix.

How far a source's letters have been dealt with is what the group `ottla-repair-<pipeline>-<source>`
has committed. A letter that is still bad stays where it is, and the group before it; only when a
later one can go back, it is written again at the end of its partition, so that the group can pass.
A letter is put back first, and then the group moves: a crash between the two puts it back twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

from ottla.client.blocking import Blocking
from ottla.client.cluster import Cluster
from ottla.client.failures import OffsetOutOfRange
from ottla.client.producer import Producer
from ottla.client.range_reader import read_range
from ottla.client.values import EARLIEST, LATEST, TopicInfo
from ottla.errors import OttlaError
from ottla.pipelines.language.model import Pipeline, Source, TopicSource
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed, Problem
from ottla.pipelines.sources import dead_letters
from ottla.pipelines.sources.dead_letters import Origin
from ottla.spark.options.sink import SinkOptions
from ottla.spark.options.values import BadOption
from ottla.spark.spelling import nearest
from ottla.types import TopicPartition
from ottla.wire.compression import Compression
from ottla.wire.records import Record, decode_records, encode_batch, headers_in

BATCH_BYTES: Final = 512 * 1024
FETCH_BYTES: Final = 4 * 1024 * 1024
RECORD_OVERHEAD_BYTES: Final = 64
GRACE_S: Final = 10.0
LOST: Final = "the letter is cut, and its record is gone from where it was"


class Fate(Enum):
    """What becomes of a letter."""

    PUT_BACK = "put back"
    STILL_BAD = "still bad"
    # From a file: there is no topic to put it back to.
    FROM_FILE = "from a file"
    # Without our headers, or from a topic that the source does not read.
    FOREIGN = "foreign"
    # A batch that ran again has left it twice: what was put back for the other counts for both.
    TWICE = "there twice"
    # Of another source, or another pipeline, that shares the topic; not counted.
    NOT_OURS = "not ours"


@dataclass(frozen=True)
class Letter:
    """One dead letter: where it came from, why, whether it would be read now, what was done."""

    source: str
    # The origin (for a file: its path and -1); empty and -1 where the headers do not say.
    topic: str
    partition: int
    offset: int
    # What made it a dead letter, and what is wrong with it now (None: nothing).
    reason: str
    reason_now: str | None
    fate: Fate


@dataclass(frozen=True)
class Repaired:
    """How many letters there were of each fate."""

    put_back: int = 0
    still_bad: int = 0
    from_files: int = 0
    foreign: int = 0


class _Sorted(NamedTuple):
    """A record of the dead-letter topic, and what is to be done with it."""

    record: Record
    # The message that goes back.
    original: Record
    letter: Letter


@dataclass(frozen=True)
class _Parcel:
    """A batch for the producer."""

    partition: TopicPartition
    batch: bytearray
    count: int


def repair(
    pipeline: Pipeline,
    *,
    source: str | None,
    dry_run: bool,
    all: bool,
    report: Callable[[Letter], None],
) -> Repaired:
    """Of one source, or of all that have dead letters. Raises PipelineFailed, BadPipeline."""
    counts: Counter[Fate] = Counter()
    for one in _chosen(pipeline, source):
        options = _options(pipeline, one)
        with Blocking(options.client) as blocking:
            work = _Repair(blocking, options, pipeline, one, is_dry=dry_run, takes_all=all)
            try:
                for letter in work.letters():
                    counts[letter.fate] += 1
                    report(letter)
            except (OttlaError, OSError, TimeoutError) as error:
                raise PipelineFailed(
                    f"source {one.name}: cannot put back the letters of {one.bad_records.topic}: "
                    f"{error or type(error).__name__}"
                ) from error
    return Repaired(
        put_back=counts[Fate.PUT_BACK],
        still_bad=counts[Fate.STILL_BAD],
        from_files=counts[Fate.FROM_FILE],
        foreign=counts[Fate.FOREIGN],
    )


def group_of(pipeline: Pipeline, source: Source) -> str:
    return f"ottla-repair-{pipeline.name}-{source.name}"


def _chosen(pipeline: Pipeline, name: str | None) -> Sequence[Source]:
    with_letters = [one for one in pipeline.sources.values() if one.bad_records.do == "dead_letter"]
    if name is None:
        if not with_letters:
            raise BadPipeline([Problem("no source has dead letters: bad_records: {topic: …}")])
        return with_letters
    if name not in pipeline.sources:
        hint = nearest(name, pipeline.sources)
        raise BadPipeline([Problem(f"there is no source {name}{hint or '; check the name'}")])
    chosen = pipeline.sources[name]
    if chosen not in with_letters:
        text = f"source {name} has no dead letters: give it bad_records: {{topic: …}}"
        raise BadPipeline([Problem(text, chosen.place)])
    return [chosen]


def _options(pipeline: Pipeline, source: Source) -> SinkOptions:
    """The same names of settings as in a run, read by the same rules."""
    given = {f"kafka.{name}": value for name, value in pipeline.kafka.items()}
    given |= {name: text for name, text in source.options.items() if name.startswith("kafka.")}
    try:
        return SinkOptions.parse(given | {"bootstrap": pipeline.bootstrap})
    except BadOption as wrong:
        raise BadPipeline([Problem(f"source {source.name}: {wrong}", source.place)]) from wrong


class _Repair:
    """The letters of one source."""

    def __init__(
        self,
        blocking: Blocking,
        options: SinkOptions,
        pipeline: Pipeline,
        source: Source,
        *,
        is_dry: bool,
        takes_all: bool,
    ) -> None:
        self._blocking = blocking
        self._options = options
        self._pipeline = pipeline
        self._source = source
        self._is_dry = is_dry
        self._takes_all = takes_all
        self._group = group_of(pipeline, source)
        self._timeout_s = options.client.retry_timeout_s + options.client.request_timeout_s
        self._topics: Mapping[str, TopicInfo] = {}
        # What this run has put back: places, and digests of what was there.
        self._put_back: set[tuple[str, int, int, bytes]] = set()

    def letters(self) -> Iterator[Letter]:
        """What was there when it began, each after it was dealt with."""
        for partition, start, end in self._ranges():
            yield from self._partition(partition, start, end)

    def _ranges(self) -> list[tuple[TopicPartition, int, int]]:
        topic, group = self._source.bad_records.topic, self._group
        origins = self._source.topics if isinstance(self._source, TopicSource) else ()

        async def ask(cluster: Cluster) -> list[tuple[TopicPartition, int, int]]:
            self._topics = await cluster.topics([topic, *origins])
            if topic not in self._topics:
                return []
            places = [TopicPartition(topic, at) for at in self._topics[topic].partitions]
            first = await cluster.list_offsets(dict.fromkeys(places, EARLIEST))
            last = await cluster.list_offsets(dict.fromkeys(places, LATEST))
            done = await cluster.committed(group, places)
            begin = {place: max(done.get(place, 0), first[place].offset) for place in places}
            return [
                (place, begin[place], last[place].offset)
                for place in places
                if begin[place] < last[place].offset
            ]

        found = self._blocking.run(ask, self._timeout_s)
        if topic not in self._topics:
            where = ", ".join(self._options.client.bootstrap)
            raise PipelineFailed(
                f"source {self._source.name}: its dead letters go to topic {topic}, which does not "
                f"exist on {where}: so there are none yet, or it is another cluster"
            )
        return found

    def _partition(self, partition: TopicPartition, start: int, end: int) -> Iterator[Letter]:
        # The offsets of letters that are still bad and keep the group back.
        waiting: list[int] = []
        has_moved = False
        for records in self._chunks(partition, start, end):
            found = self._sorted(records)
            if not self._is_dry:
                has_moved |= self._deal_with(partition, waiting, found)
            yield from (one.letter for one in found if one.letter.fate is not Fate.NOT_OURS)
        if has_moved and waiting:
            # Those before them come after them now: the order among them is kept.
            self._move(partition, waiting)
            self._commit(partition, end)

    def _chunks(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Record]]:
        for fetched in read_range(self._blocking, partition, start, end, fetch_bytes=FETCH_BYTES):
            records = [
                record
                for at, header in headers_in(fetched.records)
                if not header.is_control
                for record in decode_records(fetched.records, at)
                if start <= record.offset < end
            ]
            yield records

    def _sorted(self, records: Sequence[Record]) -> list[_Sorted]:
        origins = [dead_letters.origin(record.headers) for record in records]
        wholes = [self._whole(*one) for one in zip(records, origins, strict=True)]
        originals = [
            whole or dead_letters.original(record)
            for record, whole in zip(records, wholes, strict=True)
        ]
        errors = dead_letters.errors_now(self._source, originals)
        found: list[_Sorted] = []
        for record, origin, whole, message, error in zip(
            records, origins, wholes, originals, errors, strict=True
        ):
            if origin is not None and origin.cut_bytes is not None and whole is None:
                letter = replace(self._letter(origin, LOST), reason_now=LOST)
                if letter.fate is Fate.PUT_BACK:
                    letter = replace(letter, fate=Fate.STILL_BAD)
            else:
                letter = self._once(self._letter(origin, error), message)
            found.append(_Sorted(record, message, letter))
        return found

    def _once(self, letter: Letter, message: Record) -> Letter:
        """A batch that ran again has written its letters again.

        The place alone does not say that: a topic may have been deleted and made anew.
        """
        if letter.fate is not Fate.PUT_BACK:
            return letter
        content = blake2b(b"\0".join((message.key or b"", message.value or b"")), digest_size=16)
        which = letter.topic, letter.partition, letter.offset, content.digest()
        if which in self._put_back:
            return replace(letter, fate=Fate.TWICE)
        self._put_back.add(which)
        return letter

    def _whole(self, record: Record, origin: Origin | None) -> Record | None:
        """Of a letter that was cut: the message itself, if it is still where it was."""
        if origin is None or origin.cut_bytes is None or not self._is_ours(origin):
            return None
        place = TopicPartition(origin.place, origin.partition)
        info = self._topics.get(origin.place)
        if info is None or origin.partition not in info.partitions:
            return None
        try:
            for records in self._chunks(place, origin.offset, origin.offset + 1):
                for one in records:
                    if dead_letters.is_whole(one, record, origin):
                        return one
        except OffsetOutOfRange:
            pass
        return None

    def _is_ours(self, origin: Origin) -> bool:
        return (origin.pipeline, origin.source) == (self._pipeline.name, self._source.name)

    def _letter(self, origin: Origin | None, error: str | None) -> Letter:
        letter = Letter(self._source.name, "", -1, -1, "", error, Fate.FOREIGN)
        if origin is None:
            return letter
        letter = replace(
            letter,
            topic=origin.place,
            partition=origin.partition,
            offset=origin.offset,
            reason=origin.reason,
        )
        if not self._is_ours(origin):
            return replace(letter, fate=Fate.NOT_OURS)
        if origin.is_file:
            return replace(letter, fate=Fate.FROM_FILE)
        info = self._topics.get(origin.place)
        if info is None or origin.partition not in info.partitions:
            return letter
        is_wanted = error is None or self._takes_all
        return replace(letter, fate=Fate.PUT_BACK if is_wanted else Fate.STILL_BAD)

    def _deal_with(
        self, partition: TopicPartition, waiting: list[int], found: Sequence[_Sorted]
    ) -> bool:
        """Sends what is to be sent, then commits; whether letters had to be moved for it."""
        back: dict[TopicPartition, list[Record]] = {}
        moved: list[int] = []
        position: int | None = None
        for one in found:
            if one.letter.fate is Fate.STILL_BAD:
                waiting.append(one.record.offset)
                continue
            if one.letter.fate is Fate.PUT_BACK:
                target = TopicPartition(one.letter.topic, one.letter.partition)
                back.setdefault(target, []).append(one.original)
                moved += waiting
                waiting.clear()
            if not waiting:
                position = one.record.offset + 1
        self._move(partition, moved)
        for target, records in back.items():
            self._send(target, records)
        if position is not None:
            self._commit(partition, position)
        return bool(moved)

    def _move(self, partition: TopicPartition, offsets: Sequence[int]) -> None:
        """To the end of their partition. They are read once more, since they may be many."""
        if not offsets:
            return
        wanted = set(offsets)
        for records in self._chunks(partition, offsets[0], offsets[-1] + 1):
            self._send(partition, [record for record in records if record.offset in wanted])

    def _send(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        parcels = list(_parcels(partition, records))

        async def send(cluster: Cluster) -> None:
            timeout_s = self._options.delivery_timeout_s
            async with Producer(cluster, delivery_timeout_s=timeout_s) as producer:
                await producer.send(*parcels)
                await producer.flush()

        if parcels:
            self._blocking.run(send, self._options.delivery_timeout_s + GRACE_S)

    def _commit(self, partition: TopicPartition, position: int) -> None:
        self._blocking.run(
            lambda cluster: cluster.commit(self._group, {partition: position}), self._timeout_s
        )


def _parcels(partition: TopicPartition, records: Sequence[Record]) -> Iterator[_Parcel]:
    """In their order, in batches that a broker takes."""
    some: list[Record] = []
    size = 0
    for record in records:
        if some and size + _size(record) > BATCH_BYTES:
            yield _parcel(partition, some)
            some, size = [], 0
        some.append(record)
        size += _size(record)
    if some:
        yield _parcel(partition, some)


def _parcel(partition: TopicPartition, records: Sequence[Record]) -> _Parcel:
    placed = [record._replace(offset=at) for at, record in enumerate(records)]
    batch = encode_batch(placed)
    if len(batch) > BATCH_BYTES:
        # Its topic may have taken it only because it came compressed.
        batch = min(batch, encode_batch(placed, compression=Compression.GZIP), key=len)
    return _Parcel(partition, batch, len(placed))


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD_BYTES
