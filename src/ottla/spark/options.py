"""The options of a read and of a write, checked as a whole before anything is asked of a broker.

The rules are those of Spark's own Kafka connector: which options exclude each other, which wins,
what a stream or a batch cannot have. Names arrive lower-cased, values as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from ottla.client.failures import BadSetting
from ottla.client.fetching import PATIENCE_S
from ottla.client.settings import ClientSettings
from ottla.errors import OttlaError
from ottla.spark.columns import READ_COLUMNS
from ottla.spark.format_options import parse_format
from ottla.spark.formats.typed_columns import ERROR_COLUMN, Format
from ottla.spark.kafka_options import CLIENT, PREFIX, take_kafka_options
from ottla.spark.option_table import names_known
from ottla.spark.option_values import (
    BadOption,
    as_bool,
    as_choice,
    as_duration_ms,
    as_long,
    nearest,
    refuse,
)
from ottla.spark.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Committed,
    Earliest,
    Latest,
    Named,
    NoMatch,
    Position,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from ottla.spark.subscriptions import Assigned, Pattern, Subscription, Topics, check_pattern
from ottla.types import TopicPartition
from ottla.wire.compression import Compression

__all__ = [
    "Assigned", "BadOption", "CannotPost", "LetterOptions", "Pattern", "SinkOptions",
    "SourceOptions", "Subscription", "Topics", "letter_sink",
]  # fmt: skip

# What of a message a dead letter tells.
LETTER_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
FETCH_BYTES: Final = 8 * 1024 * 1024
FETCH_BYTES_MIN: Final = 1024
BATCH_BYTES: Final = 1_000_000
REQUEST_BYTES_MAX: Final = 1024 * 1024
BUFFER_BYTES: Final = 32 * 1024 * 1024
DELIVERY_TIMEOUT_MS: Final = 120_000
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
INT_MAX: Final = 2**31 - 1

# What a topic and a group may be called; a mistyped one is better noticed before the first fetch.
TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
ENDINGS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


class CannotPost(OttlaError):
    """Letters that no broker has taken, so that the rows around them stay where they are."""


@dataclass(frozen=True)
class LetterOptions:
    """Where the dead letters of a read go, and whose they are; picklable."""

    sink: SinkOptions
    pipeline: str = ""
    source: str = ""
    # Another has written those before these offsets.
    since: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions:
    """What a read is to do; picklable, it travels to the executors inside the reader."""

    client: ClientSettings
    subscription: Subscription
    starting: Position
    ending: Position = Latest
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    columns: tuple[str, ...] = READ_COLUMNS
    group_id: str | None = None
    read_committed: bool = False
    fetch_bytes: int = FETCH_BYTES
    poll_timeout_s: float = PATIENCE_S
    key_format: Format | None = None
    value_format: Format | None = None
    letters: LetterOptions | None = None

    @property
    def kafka_columns(self) -> tuple[str, ...]:
        """What the decoder is to build: all columns but the one that formats add."""
        plain = tuple(name for name in self.columns if name != ERROR_COLUMN)
        if self.letters is None:
            return plain
        return plain + tuple(name for name in LETTER_COLUMNS if name not in plain)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Raises BadOption with one line that says what to change."""
        kafka = checked(options)
        key_format = parse_format("key", options)
        value_format = parse_format("value", options)
        with_formats = key_format is not None or value_format is not None
        group_id = _group_id(options)
        starting, ending = _range(options, streaming=streaming, has_group=group_id is not None)
        least, most = _offsets_per_trigger(options)
        include_headers = _bool(options, "includeHeaders", default=False)
        columns = _columns(options, include_headers=include_headers, with_formats=with_formats)
        _check_formats_are_read(columns, key_format, value_format)
        delay_text = options.get("maxtriggerdelay")
        return cls(
            client=_client(kafka),
            subscription=_subscription(options),
            starting=starting,
            ending=ending,
            fail_on_data_loss=_bool(options, "failOnDataLoss", default=True),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=MAX_TRIGGER_DELAY_MS
            if delay_text is None
            else as_duration_ms("maxTriggerDelay", delay_text),
            min_partitions=_count(options, "minPartitions", most=INT_MAX),
            max_records_per_partition=_count(options, "maxRecordsPerPartition"),
            include_headers="headers" in columns,
            columns=columns,
            group_id=group_id,
            read_committed=_isolation(kafka),
            fetch_bytes=_fetch_bytes(kafka),
            poll_timeout_s=_poll_timeout_s(options),
            key_format=key_format,
            value_format=value_format,
            letters=_letters(options, with_formats=with_formats),
        )


@dataclass(frozen=True)
class SinkOptions:
    """What a write is to do; picklable."""

    client: ClientSettings
    topic: str | None = None
    compression: Compression = Compression.NONE
    acks: int = -1
    idempotent: bool = True
    batch_bytes: int = BATCH_BYTES
    in_flight_bytes: int = BUFFER_BYTES
    delivery_timeout_s: float = DELIVERY_TIMEOUT_MS / 1000

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        kafka = checked(options)
        acks, idempotent = _acks(kafka)
        codec = as_choice(
            "kafka.compression.type",
            kafka.get("compression.type", "none"),
            (one.name.lower() for one in Compression),
        )
        request_bytes = _kafka_long(kafka, "max.request.size", REQUEST_BYTES_MAX, INT_MAX)
        return cls(
            client=_client(kafka),
            topic=_topic(options),
            compression=Compression[codec.upper()],
            acks=acks,
            idempotent=idempotent,
            batch_bytes=min(_kafka_long(kafka, "batch.size", BATCH_BYTES, INT_MAX), request_bytes),
            in_flight_bytes=_kafka_long(kafka, "buffer.memory", BUFFER_BYTES),
            delivery_timeout_s=_kafka_long(
                kafka, "delivery.timeout.ms", DELIVERY_TIMEOUT_MS, INT_MAX
            )
            / 1000,
        )


def checked(options: Mapping[str, str]) -> dict[str, str]:
    """The kafka.* options without their prefix, after every name was found to be known."""
    known = names_known()
    lower = {name.lower() for name in known}
    for name in options:
        if name not in lower and not name.startswith(PREFIX):
            raise BadOption(f"option {name} is unknown{nearest(name, known)}")
    kafka = take_kafka_options(options)
    short = options.get("bootstrap")
    if short is not None:
        if kafka.get("bootstrap.servers", short) != short:
            raise BadOption(
                "options bootstrap and kafka.bootstrap.servers differ; give one of them"
            )
        kafka["bootstrap.servers"] = short
    if not kafka.get("bootstrap.servers", "").strip():
        raise BadOption(
            "option kafka.bootstrap.servers (or bootstrap) is missing, for example localhost:9092"
        )
    return kafka


def _client(kafka: Mapping[str, str]) -> ClientSettings:
    try:
        return ClientSettings.from_kafka({n: v for n, v in kafka.items() if n in CLIENT})
    except BadSetting as wrong:
        raise BadOption(f"option {PREFIX}{wrong}") from wrong


def _subscription(options: Mapping[str, str]) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if name.lower() in options]
    if len(given) != 1:
        found = " and ".join(given) + " are given" if given else "none is given"
        hint = " (topic is for writing)" if not given and "topic" in options else ""
        raise BadOption(f"exactly one of {', '.join(names)} is wanted, {found}{hint}")
    name = given[0]
    text = options[name.lower()].strip()
    if name == "assign":
        assigned = parse_assignment(name, text)
        for topic in assigned:
            _check_topic(name, topic)
        return Assigned(assigned)
    if name == "subscribePattern":
        check_pattern(name, text)
        return Pattern(text)
    topics = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    if not topics:
        refuse(name, text, "one or more topics", "orders,payments")
    for topic in topics:
        _check_topic(name, topic)
    return Topics(topics)


def _check_topic(name: str, topic: str) -> None:
    if not TOPIC.fullmatch(topic) or topic in (".", ".."):
        refuse(name, topic, "names of letters, digits and ._- with up to 249 characters")


def _range(
    options: Mapping[str, str], *, streaming: bool, has_group: bool
) -> tuple[Position, Position]:
    starting = _position(options, "starting", Latest if streaming else Earliest)
    if starting is Committed and not has_group:
        raise BadOption("option startingOffsets is 'committed', which needs the option groupId")
    if streaming:
        for name in ENDINGS:
            if name.lower() in options:
                raise BadOption(f"option {name} is for batch reads; a stream has no end")
        return starting, Latest
    ending = _position(options, "ending", Latest)
    _check_batch_start(starting)
    _check_batch_end(ending)
    _check_order(starting, ending)
    return starting, ending


def _position(options: Mapping[str, str], side: str, default: Named) -> Position:
    """A time for all partitions wins over times for each, and these over offsets."""
    strategy = as_choice(
        "startingOffsetsByTimestampStrategy",
        options.get("startingoffsetsbytimestampstrategy", "error"),
        ("error", "latest"),
    )
    no_match = cast(NoMatch, strategy)
    name = f"{side}Timestamp"
    text = options.get(name.lower())
    if text is not None:
        return AtTimestamp(as_long(name, text, least=0, example="1735689600000"), no_match)
    name = f"{side}OffsetsByTimestamp"
    text = options.get(name.lower())
    if text is not None:
        return AtTimestamps(parse_timestamps(name, text), no_match)
    name = f"{side}Offsets"
    text = options.get(name.lower(), default.value).strip()
    named = next((one for one in Named if one.value == text.lower()), None)
    if named is not None:
        return named
    if not text.startswith("{"):
        words = "earliest, latest, committed or JSON" if side == "starting" else "latest or JSON"
        refuse(name, text, words, '{"topicA":{"0":23,"1":-1}}')
    return AtOffsets(parse_offsets(name, text))


def _check_batch_start(starting: Position) -> None:
    if starting is Latest:
        raise BadOption(
            "option startingOffsets cannot be latest in a batch read, which would be empty"
        )
    if isinstance(starting, AtOffsets):
        for partition, offset in starting.offsets.items():
            if offset == LATEST_OFFSET:
                raise BadOption(
                    f"option startingOffsets has -1 (latest) for {partition}; "
                    "a batch read cannot begin at the end"
                )


def _check_batch_end(ending: Position) -> None:
    if ending is Earliest or ending is Committed:
        raise BadOption(f"option endingOffsets cannot be {ending.value}; wanted: latest or JSON")
    if isinstance(ending, AtOffsets):
        for partition, offset in ending.offsets.items():
            if offset == EARLIEST_OFFSET:
                raise BadOption(
                    f"option endingOffsets has -2 (earliest) for {partition}; "
                    "a batch read cannot end at the beginning"
                )


def _check_order(starting: Position, ending: Position) -> None:
    """Two explicit limits must be about the same partitions, and the end not before the start."""
    if isinstance(starting, AtTimestamp) and isinstance(ending, AtTimestamp):
        if starting.ms > ending.ms:
            raise BadOption(
                f"startingTimestamp {starting.ms} is later than endingTimestamp {ending.ms}"
            )
        return
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        first, last = starting.offsets, ending.offsets
    elif isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        first, last = starting.ms, ending.ms
    else:
        return
    if first.keys() != last.keys():
        odd = ", ".join(sorted(str(one) for one in first.keys() ^ last.keys()))
        raise BadOption(f"start and end must name the same partitions; only in one of them: {odd}")
    for partition, begin in first.items():
        if 0 <= last[partition] < begin:
            raise BadOption(
                f"the start {begin} of {partition} is greater than its end {last[partition]}"
            )


def _offsets_per_trigger(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    least = _count(options, "minOffsetsPerTrigger")
    most = _count(options, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise BadOption(
            f"option minOffsetsPerTrigger ({least}) is greater than maxOffsetsPerTrigger ({most})"
        )
    return least, most


def _columns(
    options: Mapping[str, str], *, include_headers: bool, with_formats: bool
) -> tuple[str, ...]:
    extra = (ERROR_COLUMN,) if with_formats else ()
    text = options.get("columns")
    if text is None:
        plain = tuple(name for name in READ_COLUMNS if name != "headers" or include_headers)
        return plain + extra
    known = {name.lower(): name for name in READ_COLUMNS + extra}
    chosen: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        column = known.get(word.lower())
        if column is None:
            raise BadOption(
                f"option columns names {word!r}{nearest(word, known.values())}; "
                f"wanted: some of {', '.join(known.values())}"
            )
        if column in chosen:
            raise BadOption(f"option columns names {column} twice")
        chosen.append(column)
    if not chosen:
        refuse("columns", text, "one or more columns", "key,offset")
    return tuple(chosen)


def _check_formats_are_read(
    columns: tuple[str, ...], key_format: Format | None, value_format: Format | None
) -> None:
    for column, form in (("key", key_format), ("value", value_format)):
        if form is not None and column not in columns:
            raise BadOption(f"option {column}Format is given, but columns leaves {column} out")


def _letters(options: Mapping[str, str], *, with_formats: bool) -> LetterOptions | None:
    topic = options.get("deadlettertopic")
    if topic is None:
        return None
    if not with_formats:
        raise BadOption(
            "option deadLetterTopic needs valueFormat or keyFormat: bytes are never bad"
        )
    _check_topic("deadLetterTopic", topic.strip())
    if _reads(_subscription(options), topic.strip()):
        raise BadOption(
            f"option deadLetterTopic is {topic.strip()}, which is read as well, so that letters "
            "would come back for ever; choose another"
        )
    pipeline, source = json.loads(options.get("deadlettersof", '["", ""]'))
    since = options.get("deadlettersfrom")
    return LetterOptions(
        letter_sink(options, topic),
        pipeline,
        source,
        parse_offsets("deadLettersFrom", since) if since is not None else {},
    )


def letter_sink(options: Mapping[str, str], topic: str) -> SinkOptions:
    """What is passed over must be kept for certain, whatever rows may risk."""
    others = {name: text for name, text in options.items() if name != "kafka.acks"}
    return SinkOptions.parse({**others, "topic": topic})


def _reads(subscription: Subscription, topic: str) -> bool:
    match subscription:
        case Topics(names=names):
            return topic in names
        case Assigned(partitions=named):
            return topic in named
        case Pattern():
            return subscription.matches(topic)


def _group_id(options: Mapping[str, str]) -> str | None:
    text = options.get("groupid")
    if text is not None and not text.strip():
        refuse("groupId", text, "the name of a consumer group", "orders-job")
    return text


def _topic(options: Mapping[str, str]) -> str | None:
    text = options.get("topic")
    if text is None:
        return None
    _check_topic("topic", text.strip())
    return text.strip()


def _isolation(kafka: Mapping[str, str]) -> bool:
    levels = ("read_uncommitted", "read_committed")
    chosen = as_choice("kafka.isolation.level", kafka.get("isolation.level", levels[0]), levels)
    return chosen == "read_committed"


def _fetch_bytes(kafka: Mapping[str, str]) -> int:
    per_partition = _kafka_long(kafka, "max.partition.fetch.bytes", FETCH_BYTES, INT_MAX)
    per_fetch = _kafka_long(kafka, "fetch.max.bytes", INT_MAX, INT_MAX)
    return max(FETCH_BYTES_MIN, min(per_partition, per_fetch))


def _poll_timeout_s(options: Mapping[str, str]) -> float:
    ms = _count(options, "kafkaConsumer.pollTimeoutMs")
    return PATIENCE_S if ms is None else ms / 1000


def _acks(kafka: Mapping[str, str]) -> tuple[int, bool]:
    """Idempotence needs acks=all: as in Java, less turns it off, unless it was asked for."""
    text = as_choice("kafka.acks", kafka.get("acks", "all"), ("all", "-1", "1", "0"))
    acks = -1 if text == "all" else int(text)
    asked = kafka.get("enable.idempotence")
    idempotent = True if asked is None else as_bool("kafka.enable.idempotence", asked)
    if acks != -1 and idempotent:
        if asked is not None:
            raise BadOption(f"kafka.enable.idempotence needs kafka.acks=all, but that is {text}")
        return acks, False
    return acks, idempotent


def _bool(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    return default if text is None else as_bool(name, text)


def _count(options: Mapping[str, str], name: str, *, most: int | None = None) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    return as_long(name, text, least=1) if most is None else as_long(name, text, least=1, most=most)


def _kafka_long(kafka: Mapping[str, str], name: str, default: int, most: int = 2**63 - 1) -> int:
    text = kafka.get(name)
    return default if text is None else as_long(PREFIX + name, text, least=1, most=most)
