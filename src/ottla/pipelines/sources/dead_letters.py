"""What a dead letter's headers tell, and whether what it carries can be read now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa

from ottla.pipelines.language.model import Source, TopicSource
from ottla.pipelines.sources import schemas
from ottla.spark.dead_letters import CUT, OF_FILE, OF_TOPIC
from ottla.spark.formats.typed_columns import ERROR_COLUMN, typed_batch
from ottla.wire.records import Record

# A message without a time has the last millisecond before this.
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Headers = Sequence[tuple[str, bytes | None]]


class Origin(NamedTuple):
    """Where a letter came from."""

    # A topic, or a file (then without partition and offset).
    place: str
    partition: int
    offset: int
    # None where it is not told, or is beyond what Python calls a time.
    timestamp_ms: int | None
    reason: str
    pipeline: str
    source: str
    # The bytes that the value had, of which the letter has only the first; None: it is whole.
    cut_bytes: int | None = None

    @property
    def is_file(self) -> bool:
        return self.partition < 0


def origin(headers: Headers) -> Origin | None:
    """None where the headers at the end are not those that a pipeline writes."""
    told = _ours(headers)
    try:
        texts = {name: (value or b"").decode() for name, value in told.items()}
        cut_bytes = int(texts[CUT]) if CUT in texts else None
        if "ottla.topic" not in told:
            place, partition, offset, timestamp_ms = texts["ottla.file"], -1, -1, None
        else:
            place, partition = texts["ottla.topic"], int(texts["ottla.partition"])
            offset, timestamp_ms = int(texts["ottla.offset"]), _ms(texts["ottla.timestamp"])
            if partition < 0 or offset < 0:
                return None
    except (ValueError, KeyError):
        return None
    reason, pipeline, source = (texts[f"ottla.{name}"] for name in ("reason", "pipeline", "source"))
    return Origin(place, partition, offset, timestamp_ms, reason, pipeline, source, cut_bytes)


def original(letter: Record) -> Record:
    """The message as it was: its own headers and time."""
    found = origin(letter.headers)
    if found is None:
        return letter
    own = letter.headers[: len(letter.headers) - len(_ours(letter.headers))]
    time_ms = letter.timestamp if found.timestamp_ms is None else found.timestamp_ms
    return letter._replace(headers=own, timestamp=time_ms)


def is_whole(record: Record, letter: Record, origin: Origin) -> bool:
    """Whether this is the record that the letter was cut from."""
    value = record.value or b""
    return (
        len(value) == origin.cut_bytes
        and value.startswith(letter.value or b"")
        and origin.timestamp_ms in (None, record.timestamp)
    )


def errors_now(source: Source, messages: Sequence[Record]) -> list[str | None]:
    """What is wrong with each message by the schemas that the source has now."""
    if not isinstance(source, TopicSource):
        return [None] * len(messages)
    key, value = schemas.key_format(source), schemas.value_format(source)
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([one.key for one in messages], pa.binary()),
            "value": pa.array([one.value for one in messages], pa.binary()),
        }
    )
    errors: list[str | None] = typed_batch(batch, (ERROR_COLUMN,), key, value).column(0).to_pylist()
    return errors


def _ours(headers: Headers) -> Mapping[str, bytes | None]:
    """Those at the end, which are ours by their names and order. A letter of a letter has two."""
    for names in (OF_TOPIC, OF_FILE):
        last = headers[-len(names) :]
        if tuple(name for name, _ in last) == names:
            before = headers[: -len(names)][-1:]
            return dict(last) | {name: value for name, value in before if name == CUT}
    return {}


def _ms(text: str) -> int | None:
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)
    except ValueError:
        return None
