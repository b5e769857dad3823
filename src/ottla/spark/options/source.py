"""The options of a read, checked as a whole before anything is asked of a broker.

The rules are those of Spark's own Kafka connector: which options exclude each other, which wins,
what a stream or a batch cannot have. Names arrive lower-cased, values as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.range_reader import PATIENCE_S
from ottla.client.settings import ClientSettings
from ottla.spark.columns import READ_COLUMNS
from ottla.spark.formats.typed_columns import ERROR_COLUMN, Format
from ottla.spark.options.both_sides import (
    INT_MAX,
    checked,
    client_settings,
    count,
    flag,
    kafka_long,
)
from ottla.spark.options.bounds import parse_range
from ottla.spark.options.formats import parse_format
from ottla.spark.options.letters import LETTER_COLUMNS, LetterOptions, parse_letters
from ottla.spark.options.positions import Latest, Position
from ottla.spark.options.subscriptions import Subscription, parse_subscription
from ottla.spark.options.values import BadOption, as_choice, as_duration_ms, raise_bad_option
from ottla.spark.spelling import nearest

FETCH_BYTES: Final = 8 * 1024 * 1024
FETCH_BYTES_MIN: Final = 1024
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000


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
        starting, ending = parse_range(options, streaming=streaming, has_group=group_id is not None)
        least, most = _offsets_per_trigger(options)
        include_headers = flag(options, "includeHeaders", default=False)
        columns = _columns(options, include_headers=include_headers, with_formats=with_formats)
        _check_formats_are_read(columns, key_format, value_format)
        delay_text = options.get("maxtriggerdelay")
        return cls(
            client=client_settings(kafka),
            subscription=parse_subscription(options),
            starting=starting,
            ending=ending,
            fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=MAX_TRIGGER_DELAY_MS
            if delay_text is None
            else as_duration_ms("maxTriggerDelay", delay_text),
            min_partitions=count(options, "minPartitions", most=INT_MAX),
            max_records_per_partition=count(options, "maxRecordsPerPartition"),
            include_headers="headers" in columns,
            columns=columns,
            group_id=group_id,
            read_committed=_isolation(kafka),
            fetch_bytes=_fetch_bytes(kafka),
            poll_timeout_s=_poll_timeout_s(options),
            key_format=key_format,
            value_format=value_format,
            letters=parse_letters(options, with_formats=with_formats),
        )


def _offsets_per_trigger(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    least = count(options, "minOffsetsPerTrigger")
    most = count(options, "maxOffsetsPerTrigger")
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
        raise_bad_option("columns", text, "one or more columns", "key,offset")
    return tuple(chosen)


def _check_formats_are_read(
    columns: tuple[str, ...], key_format: Format | None, value_format: Format | None
) -> None:
    for column, form in (("key", key_format), ("value", value_format)):
        if form is not None and column not in columns:
            raise BadOption(f"option {column}Format is given, but columns leaves {column} out")


def _group_id(options: Mapping[str, str]) -> str | None:
    text = options.get("groupid")
    if text is not None and not text.strip():
        raise_bad_option("groupId", text, "the name of a consumer group", "orders-job")
    return text


def _isolation(kafka: Mapping[str, str]) -> bool:
    levels = ("read_uncommitted", "read_committed")
    chosen = as_choice("kafka.isolation.level", kafka.get("isolation.level", levels[0]), levels)
    return chosen == "read_committed"


def _fetch_bytes(kafka: Mapping[str, str]) -> int:
    per_partition = kafka_long(kafka, "max.partition.fetch.bytes", FETCH_BYTES, INT_MAX)
    per_fetch = kafka_long(kafka, "fetch.max.bytes", INT_MAX, INT_MAX)
    return max(FETCH_BYTES_MIN, min(per_partition, per_fetch))


def _poll_timeout_s(options: Mapping[str, str]) -> float:
    ms = count(options, "kafkaConsumer.pollTimeoutMs")
    return PATIENCE_S if ms is None else ms / 1000
