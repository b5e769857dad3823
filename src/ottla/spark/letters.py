"""Dead letters: the task that finds records which do not parse writes them to another topic.

They are acknowledged before the rows around them are handed to Spark. So whatever a query does
with the rows, and whenever it dies, no record is passed over that is not in the topic; a task that
runs again writes its letters again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.columns import ARROW
from ottla.spark.options import CannotPost, LetterOptions
from ottla.spark.writer import CannotWrite, write_rows
from ottla.types import TopicPartition

# The headers that a dead letter has behind those of the message itself, in this order.
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
    """The message's own, and behind them ours: `told`, and whose it is."""
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
    try:
        write_rows(options.sink, [pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)])
    except CannotWrite as error:
        raise CannotPost(f"dead letters for {options.sink.topic}: {error}") from None
