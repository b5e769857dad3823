"""The expected rows of a test, typed by the columns that the view really has."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa

from ottla.pipelines.cases.row_files import (
    BadLine,
    Line,
    Wrong,
    check_names,
    cut,
    json_text,
    lines_of,
    object_in,
    unknown,
)
from ottla.spark.formats.json_row import row_parser
from ottla.spark.formats.spark_types import to_ddl

NOT_FINITE: Final = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}


@dataclass(frozen=True)
class ExpectedRow:
    line: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Expected:
    file: Path
    # Those that are compared, in the order of the view.
    columns: tuple[str, ...]
    rows: tuple[ExpectedRow, ...]


def read_expected(file: Path, kind: pa.DataType, optional: Sequence[str] = ()) -> Expected:
    """Rows of a view with columns `kind`; raises BadCase with each line that cannot be one.

    Columns that begin with _ and `optional` ones are compared only where the file names them.
    """
    wrong = Wrong()
    found: list[tuple[Line, dict[str, Any]]] = []
    for line in lines_of(file):
        try:
            found.append((line, object_in(line)))
        except BadLine as bad:
            wrong.add(line, bad)
    wrong.check()
    named = {name for _, row in found for name in row}
    columns = tuple(
        field.name
        for field in kind
        if field.name in named or not (field.name.startswith("_") or field.name in optional)
    )
    types = {field.name: field.type for field in kind}
    rows: list[ExpectedRow] = []
    for line, row in found:
        try:
            rows.append(ExpectedRow(line.number, _row(row, columns, types)))
        except BadLine as bad:
            wrong.add(line, bad)
    wrong.check()
    return Expected(file, columns, tuple(rows))


def _row(
    row: dict[str, Any], columns: Sequence[str], types: dict[str, pa.DataType]
) -> dict[str, Any]:
    check_names(row, list(types))
    for name in columns:
        if name not in row:
            raise BadLine(f"the column {name!r} is missing; add it, perhaps with null")
    return {name: typed(row[name], types[name], name) for name in columns}


def typed(found: Any, kind: pa.DataType, path: str) -> Any:
    """A JSON value as Arrow gives the same one to Python; raises BadLine. Nothing is converted
    that a person might not have meant: no number is a text, no text a number."""
    if found is None:
        return None
    if pa.types.is_struct(kind):
        return _struct(found, kind, path)
    if pa.types.is_map(kind):
        if not isinstance(found, dict):
            raise _misfit(found, kind, path)
        return {
            _map_key(key, kind.key_type, path): typed(value, kind.item_type, f"{path}[{key}]")
            for key, value in found.items()
        }
    if pa.types.is_list(kind):
        if not isinstance(found, list):
            raise _misfit(found, kind, path)
        return [typed(one, kind.value_type, f"{path}[{at}]") for at, one in enumerate(found)]
    return _scalar(found, kind, path)


def _struct(found: Any, kind: pa.DataType, path: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _misfit(found, kind, path)
    names = [field.name for field in kind]
    for name in found:
        if name not in names:
            raise BadLine(f"in {path} " + unknown(name, names, "field"))
    for name in names:
        if name not in found:
            raise BadLine(f"in {path} the field {name!r} is missing; add it, perhaps with null")
    return {field.name: typed(found[field.name], field.type, f"{path}.{field.name}")
            for field in kind}  # fmt: skip


def _map_key(key: str, kind: pa.DataType, path: str) -> Any:
    if kind == pa.string():
        return key
    try:
        found = json.loads(key, parse_float=Decimal)
    except ValueError:
        found = key
    return typed(found, kind, f"{path}, key {key!r}")


def _scalar(found: Any, kind: pa.DataType, path: str) -> Any:
    if pa.types.is_boolean(kind):
        return found if isinstance(found, bool) else _raise_misfit(found, kind, path)
    if pa.types.is_integer(kind):
        is_whole = isinstance(found, int) and not isinstance(found, bool)
        return found if is_whole else _raise_misfit(found, kind, path)
    if pa.types.is_floating(kind):
        return _float(found, kind, path)
    if pa.types.is_decimal(kind):
        return _decimal(found, kind, path)
    if not isinstance(found, str):
        _raise_misfit(found, kind, path)
    if kind == pa.string():
        return found
    value, error = row_parser(kind)(json.dumps(found).encode())
    return _raise_misfit(found, kind, path) if error else pa.scalar(value, kind).as_py()


def _float(found: Any, kind: pa.DataType, path: str) -> float:
    if isinstance(found, str) and found in NOT_FINITE:
        return NOT_FINITE[found]
    if isinstance(found, bool) or not isinstance(found, int | Decimal):
        _raise_misfit(found, kind, path)
    try:
        value = float(found)
        return value if kind == pa.float64() else struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        _raise_misfit(found, kind, path)


def _decimal(found: Any, kind: pa.DataType, path: str) -> Decimal:
    """Not rounded to the column's scale: 1.005 is never equal to a DECIMAL(10, 2)."""
    if isinstance(found, bool) or not isinstance(found, int | Decimal | str):
        _raise_misfit(found, kind, path)
    try:
        value = Decimal(found)
    except InvalidOperation:
        _raise_misfit(found, kind, path)
    if not value.is_finite():
        _raise_misfit(found, kind, path)
    return value


def _misfit(found: Any, kind: pa.DataType, path: str) -> BadLine:
    hint = "; write it in quotes" if kind == pa.string() else ""
    return BadLine(f"column {path}: {cut(json_text(found))} is not {to_ddl(kind)}{hint}")


def _raise_misfit(found: Any, kind: pa.DataType, path: str) -> NoReturn:
    raise _misfit(found, kind, path)
