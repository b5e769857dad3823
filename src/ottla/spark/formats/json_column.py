"""JSON values into a typed column: in bulk by Arrow's parser, row by row only what that refuses.

Both ways must agree, and with Spark's from_json: a missing field is null, one too many is ignored,
a string takes any JSON as its text; of a wrong type the field is null, and here an error is told.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ottla.spark import kernels
from ottla.spark.formats.json_row import row_parser
from ottla.spark.formats.json_times import timestamps
from ottla.spark.formats.spark_types import BadSchema

# So many are parsed at once: enough for Arrow, and few to be parsed again for a bad one.
ROWS_AT_ONCE: Final = 16_384
# And first so many, which tells whether there are bad ones for less.
ROWS_FIRST: Final = 2048
ROWS_SINGLY: Final = 256
PIECES: Final = 8
# Arrow counts the bytes of a block with 32 bits.
BLOCK_BYTES_MAX: Final = 2**31 - 2
# A word that Arrow's parser takes for a number, and neither Spark's nor Python's.
_INF: Final = re.compile(rb"[\s:\[,-]Inf[\s,\]}]")

Parsed = tuple[pa.Array, pa.Array]
Screen = Callable[[pa.Array, pa.DataType], pa.Array]


def texts(column: pa.Array) -> Parsed:
    """Bytes as UTF-8; what is not is null, with an error."""
    try:
        return column.cast(pa.string()), pa.nulls(len(column), pa.string())
    except pa.ArrowInvalid:
        pairs = [_text(value) for value in column.to_pylist()]
        values, errors = zip(*pairs, strict=True)
        return pa.array(values, pa.string()), pa.array(errors, pa.string())


def check_type(kind: pa.DataType) -> None:
    """Raises BadSchema for what JSON cannot hold."""
    if pa.types.is_map(kind) and kind.key_type != pa.string():
        raise BadSchema("a MAP in JSON has keys of type STRING")
    for at in range(kind.num_fields):
        check_type(kind.field(at).type)


def parse_column(column: pa.Array, kind: pa.DataType) -> Parsed:
    """Every value of a binary column as `kind`, and the errors (null where all is well)."""
    if not _fits_bulk(kind) or len(column) == 0:
        return _singly(column, kind)
    pieces: list[Parsed] = []
    # Bad rows come in company: after a piece that had some, the next one is screened at once.
    had_errors = False
    for begin, size in _cut(len(column)):
        piece = column.slice(begin, size)
        whole = None if had_errors else _bulk(piece, kind)
        if whole is None:
            pieces.append(_in_parts(piece, kind))
            had_errors = pieces[-1][1].null_count < len(piece)
        else:
            pieces.append((whole, pa.nulls(len(piece), pa.string())))
    return _joined(pieces)


def _cut(rows: int) -> Iterator[tuple[int, int]]:
    yield 0, ROWS_FIRST
    for begin in range(ROWS_FIRST, rows, ROWS_AT_ONCE):
        yield begin, ROWS_AT_ONCE


def _in_parts(column: pa.Array, kind: pa.DataType) -> Parsed:
    """Of what has bad rows, as much in bulk as can be."""
    if len(column) <= ROWS_SINGLY:
        return _singly(column, kind)
    screened = _screened(column, kind, _screen())
    if screened is not None:
        return screened
    size = -(-len(column) // PIECES)
    pieces: list[Parsed] = []
    for at in range(0, len(column), size):
        piece = column.slice(at, size)
        whole = _bulk(piece, kind)
        good = None if whole is None else (whole, pa.nulls(len(piece), pa.string()))
        pieces.append(good or _in_parts(piece, kind))
    return _joined(pieces)


def _joined(pieces: list[Parsed]) -> Parsed:
    if len(pieces) == 1:
        return pieces[0]
    return (
        pa.concat_arrays([typed for typed, _ in pieces]),
        pa.concat_arrays([errors for _, errors in pieces]),
    )


def _screened(column: pa.Array, kind: pa.DataType, screen: Screen) -> Parsed | None:
    """In bulk what looks good, singly the rest; None when that was not enough."""
    looks_good = screen(column, kind)
    good = _bulk(column.filter(looks_good), kind)
    if good is None:
        return None
    rest, errors = _singly(column.filter(pc.invert(looks_good)), kind)
    # Where each row lies when the rest stands after the good ones.
    among_good = pc.subtract(pc.cumulative_sum(looks_good.cast(pa.int64())), 1)
    among_rest = pc.cumulative_sum(pc.invert(looks_good).cast(pa.int64()))
    places = pc.if_else(looks_good, among_good, pc.add(among_rest, len(good) - 1))
    told = pa.concat_arrays([pa.nulls(len(good), pa.string()), errors])
    return pa.concat_arrays([good, rest]).take(places), told.take(places)


def _screen() -> Screen:
    # Imported when something is wrong: what is all good needs no compiler.
    if kernels.is_available():
        from ottla.spark.formats import json_screen_tables

        return json_screen_tables.screen
    from ottla.spark.formats import json_screen_plain

    return json_screen_plain.screen


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        return value.decode(), None
    except UnicodeDecodeError as wrong:
        return None, f"it is not UTF-8: {wrong.reason} at byte {wrong.start}"


def _singly(column: pa.Array, kind: pa.DataType) -> Parsed:
    parse = row_parser(kind)
    pairs = [parse(value) for value in column.to_pylist()]
    values = [value for value, _ in pairs]
    errors = [error for _, error in pairs]
    return pa.array(values, kind), pa.array(errors, pa.string())


def _fits_bulk(kind: pa.DataType) -> bool:
    """Arrow reads objects, and its maps are not written as JSON's."""
    return pa.types.is_struct(kind) and kind.num_fields > 0 and not _has(kind, pa.types.is_map)


def _has(kind: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    inside = (kind.field(at).type for at in range(kind.num_fields))
    return is_one(kind) or any(_has(one, is_one) for one in inside)


def _bulk(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The column at once, or None when there is anything to look at more closely."""
    try:
        values = pc.ascii_trim(column.cast(pa.string()).drop_null(), characters=" \t\n\r")
        rows = _rows(values, _raw(kind))
        if rows is None:
            return None
        typed = _finished(rows, kind)
        if _has(kind, pa.types.is_decimal):
            # The parser lets a number have more digits than its type.
            typed.validate(full=True)
    except (ValueError, pa.ArrowNotImplementedError):
        # Among them ArrowInvalid, and what is no base64.
        return None
    if column.null_count == 0:
        return typed
    # The place of each value among those that are not null; nulls stay null.
    places = pc.subtract(pc.cumulative_sum(column.is_valid().cast(pa.int64())), 1)
    return typed.take(pc.if_else(column.is_valid(), places, pa.scalar(None, pa.int64())))


def _rows(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """One row for each value, by Arrow's parser.

    The values are joined by newlines. As each begins with { and ends with }, and }{ can stand only
    between two objects of the top level (no string holds a newline), every value is one such
    object or more; with as many rows as values there is exactly one in each.
    """
    if len(values) == 0:
        return pa.array([], kind)
    framed = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if not pc.all(framed).as_py():
        return None
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    data = pc.binary_join(whole, "\n")[0].as_buffer().to_pybytes()
    if len(data) > BLOCK_BYTES_MAX or (b"Inf" in data and _INF.search(data)):
        return None
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(values):
        return None
    columns = [table.column(at).combine_chunks() for at in range(kind.num_fields)]
    arrays = [one if isinstance(one, pa.Array) else pa.concat_arrays(one.chunks) for one in columns]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _raw(kind: pa.DataType) -> pa.DataType:
    """What Arrow's parser is asked for: what it reads otherwise than Spark comes as text."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _raw(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _raw(kind.value_type)))
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return pa.string()
    return kind


def _finished(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    missing = array.is_null()
    if pa.types.is_struct(kind):
        fields = list(kind)
        children = [_finished(array.field(at), field.type) for at, field in enumerate(fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=missing)
    if pa.types.is_list(kind):
        values = _finished(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=missing)
    if pa.types.is_timestamp(kind):
        return timestamps(array, kind)
    if pa.types.is_binary(kind):
        decoded = (one and base64.b64decode(one, validate=True) for one in array.to_pylist())
        return pa.array([b"" if one == "" else one for one in decoded], pa.binary())
    return array.cast(kind)
