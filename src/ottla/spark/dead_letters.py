"""Dead letters: the task that finds records which do not parse writes them to another topic.

They are acknowledged before the rows around them are handed to Spark. So whatever a query does
with the rows, and whenever it dies, no record is passed over that is not in the topic; a task that
runs again writes its letters again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.blocking import shared
from ottla.client.limits import batch_bytes_max
from ottla.errors import OttlaError
from ottla.spark.columns import ARROW
from ottla.spark.options.letters import CannotPost, LetterOptions
from ottla.spark.options.sink import SinkOptions
from ottla.spark.writer import CannotWrite, RowsTooLarge, write_rows
from ottla.types import TopicPartition

# The headers that a dead letter has after those of the message itself, in this order.
OF_TOPIC: Final = (
    "ottla.topic",
    "ottla.partition",
    "ottla.offset",
    "ottla.timestamp",
    "ottla.reason",
    "ottla.pipeline",
    "ottla.source",
)
OF_FILE: Final = ("ottla.file", "ottla.reason", "ottla.pipeline", "ottla.source")
# Before them, where the letter is not whole: the bytes that the value had.
CUT: Final = "ottla.cut"
# The header of a batch, and the numbers of a record and of each of its headers, at their longest.
LETTER_OVERHEAD_BYTES: Final = 128
HEADER_OVERHEAD_BYTES: Final = 10
_SCHEMA: Final = pa.schema([(name, ARROW[name]) for name in ("key", "value", "headers")])


def write_letters(options: LetterOptions, messages: pa.RecordBatch, errors: pa.Array) -> None:
    """Of messages as they came (LETTER_COLUMNS), those that have an error; returns when they are
    acknowledged."""
    is_bad = errors.is_valid()
    bad, reasons = messages.filter(is_bad), errors.filter(is_bad)
    if options.since:
        is_ours = _is_ours(options, bad)
        bad, reasons = bad.filter(is_ours), reasons.filter(is_ours)
    if not bad.num_rows:
        return
    # Without a zone, so that it is printed in UTC.
    at = pc.strftime(bad.column("timestamp").cast(pa.timestamp("ms")), "%Y-%m-%dT%H:%M:%SZ")
    told = [
        *(bad.column(name).cast(pa.string()) for name in ("topic", "partition", "offset")),
        at,
        reasons,
    ]
    headers = _headers(options, OF_TOPIC, told, bad.column("headers").to_pylist())
    _write(options, [bad.column("key"), bad.column("value"), headers])


def write_file_letters(
    options: LetterOptions, files: pa.Array, values: pa.Array, errors: pa.Array
) -> None:
    """The same for records of files, which have a file each, and no key."""
    if errors.null_count == len(errors):
        return
    is_bad = errors.is_valid()
    told = [one.filter(is_bad).cast(pa.string()) for one in (files, errors)]
    count = len(told[0])
    headers = _headers(options, OF_FILE, told, [None] * count)
    bad = values.filter(is_bad).cast(pa.binary())
    _write(options, [pa.nulls(count, pa.binary()), bad, headers])


def _is_ours(options: LetterOptions, bad: pa.RecordBatch) -> pa.Array:
    columns = (bad.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    places = zip(*columns, strict=True)
    since = options.since
    return pa.array(
        np.array(
            [
                offset >= since.get(TopicPartition(topic, partition), 0)
                for topic, partition, offset in places
            ],
            bool,
        )
    )


def _headers(
    options: LetterOptions,
    names: tuple[str, ...],
    told: list[pa.Array],
    own: list[list[dict[str, object]] | None],
) -> pa.Array:
    """The headers of the message, and after them ours: `told`, the pipeline and the source."""
    whose = (options.pipeline.encode(), options.source.encode())
    rows = zip(own, *(one.cast(pa.binary()).to_pylist() for one in told), strict=True)
    return pa.array(
        [
            [
                *(theirs or ()),
                *(
                    {"key": name, "value": value}
                    for name, value in zip(names, (*ours, *whose), strict=True)
                ),
            ]
            for theirs, *ours in rows
        ],
        ARROW["headers"],
    )


def _write(options: LetterOptions, columns: list[pa.Array]) -> None:
    letters = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
    try:
        try:
            write_rows(options.sink, [letters])
        except RowsTooLarge:
            _write_cut(options.sink, letters)
    except CannotWrite as error:
        raise CannotPost(f"dead letters for {options.sink.topic}: {error}") from None


def _write_cut(sink: SinkOptions, letters: pa.RecordBatch) -> None:
    """With what is too large cut to what the topic takes; those of the first attempt that were
    taken come twice."""
    rows = letters.to_pylist()
    limit = _limit_of(sink) or max(map(_size, rows)) // 2
    while True:
        cut = [_cut(row, limit) for row in rows]
        try:
            write_rows(
                replace(sink, batch_bytes=min(sink.batch_bytes, limit)),
                [pa.RecordBatch.from_pylist(cut, schema=_SCHEMA)],
            )
        except RowsTooLarge:
            if not any(row["value"] for row in cut):
                raise
            limit //= 2
        else:
            return


def _limit_of(sink: SinkOptions) -> int | None:
    assert sink.topic is not None
    topic, settings = sink.topic, sink.client
    try:
        return shared(settings).run(
            lambda cluster: batch_bytes_max(cluster, topic), settings.request_timeout_s
        )
    except (OttlaError, OSError, TimeoutError):
        # It is found out by trying.
        return None


def _cut(row: dict[str, Any], limit: int) -> dict[str, Any]:
    """The letter in so many bytes. First the value gives way, then its own headers, then its key;
    where it was stays."""
    if _size(row) <= limit:
        return row
    at = _first_of_ours(row["headers"])
    own, ours = row["headers"][:at], row["headers"][at:]
    told = {"key": CUT, "value": str(len(row["value"] or b"")).encode()}
    for key, theirs in ((row["key"], own), (row["key"], []), (None, [])):
        headers = [*theirs, told, *ours]
        room = limit - _size({"key": key, "value": None, "headers": headers})
        if room >= 0:
            break
    value = None if row["value"] is None else row["value"][: max(room, 0)]
    return {"key": key, "value": value, "headers": headers}


def _first_of_ours(headers: list[dict[str, Any]]) -> int:
    names = OF_FILE if headers[-len(OF_FILE)]["key"] == OF_FILE[0] else OF_TOPIC
    return len(headers) - len(names)


def _size(row: dict[str, Any]) -> int:
    """What a batch of this letter alone takes, at most."""
    headers = sum(
        len(one["key"].encode()) + len(one["value"] or b"") + HEADER_OVERHEAD_BYTES
        for one in row["headers"]
    )
    return len(row["key"] or b"") + len(row["value"] or b"") + headers + LETTER_OVERHEAD_BYTES
