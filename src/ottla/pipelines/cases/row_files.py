"""The files of a test: read by the line, every mistake with the place where it stands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa

from ottla.pipelines.language.problems import Place, Problem
from ottla.spark.formats.json_row import row_parser
from ottla.spark.formats.spark_types import BadSchema, parse_type
from ottla.spark.spelling import nearest

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
SHOWN_CHARS: Final = 80
PROBLEMS_MAX: Final = 20
JSON_LINES: Final = (".jsonl", ".json", ".ndjson")


class BadCase(Exception):
    """A test that cannot be run, because of its own files."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class BadLine(ValueError):
    """What is wrong in one line; the column counts from one."""

    def __init__(self, text: str, column: int = 1) -> None:
        super().__init__(text)
        self.column = column


@dataclass(frozen=True)
class Line:
    file: Path
    number: int
    data: bytes

    def problem(self, wrong: BadLine) -> Problem:
        return Problem(str(wrong), Place(self.file, self.number, wrong.column))


class Wrong:
    """Collects what is wrong in a file, to be told at once."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def add(self, line: Line, wrong: BadLine) -> None:
        self._problems.append(line.problem(wrong))

    def check(self) -> None:
        """Raises BadCase if there is anything."""
        if self._problems:
            raise BadCase(self._problems[:PROBLEMS_MAX])


def bytes_of(file: Path) -> bytes:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise BadCase([Problem(f"{file} is larger than 64 MiB; give a test fewer rows")])
        return file.read_bytes()
    except OSError as wrong:
        reason = wrong.strerror or str(wrong)
        raise BadCase([Problem(f"{file} cannot be read: {reason}; make it or correct its name")]) \
            from wrong  # fmt: skip


def lines_of(file: Path) -> list[Line]:
    """Its lines without those that are empty."""
    lines = bytes_of(file).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [
        Line(file, number, data.removesuffix(b"\r"))
        for number, data in enumerate(lines, 1)
        if data.strip()
    ]


def object_in(line: Line) -> dict[str, Any]:
    """The JSON object of a line, numbers exactly as they stand; raises BadLine."""
    try:
        found = json.loads(
            line.data, parse_float=Decimal, object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError as wrong:
        raise BadLine(f"it is not UTF-8: {wrong.reason}", wrong.start + 1) from wrong
    except json.JSONDecodeError as wrong:
        raise BadLine(f"it is not JSON: {wrong.msg}", wrong.colno) from wrong
    except BadLine:
        raise
    except (ValueError, RecursionError) as wrong:
        raise BadLine(f"it is not JSON: {cut(str(wrong))}") from wrong
    if not isinstance(found, dict):
        raise BadLine(f"{cut(json_text(found))} is not an object; wanted: one {{…}} in each line")
    return found


def unknown(name: str, known: Iterable[str], what: str) -> str:
    names = list(known)
    return f"there is no {what} {name!r} (there are {', '.join(names)}){nearest(name, names)}"


def check_names(row: Iterable[str], known: Sequence[str], what: str = "column") -> None:
    for name in row:
        if name not in known:
            raise BadLine(unknown(name, known, what))


def value_in(parsed: tuple[Any, str | None]) -> Any:
    """What a parser of rows has made; its error is raised as BadLine."""
    value, error = parsed
    if error is not None:
        raise BadLine(error)
    return value


def typed_rows(file: Path, kind: pa.DataType) -> list[Any]:
    """JSON lines as rows of a struct; a field left out is null, one too many is an error."""
    parse = row_parser(kind)
    names = [field.name for field in kind]
    rows: list[Any] = []
    wrong = Wrong()
    for line in lines_of(file):
        try:
            check_names(object_in(line), names)
            rows.append(value_in(parse(line.data)))
        except BadLine as found:
            wrong.add(line, found)
    wrong.check()
    return rows


def typed_table(file: Path, kind: pa.DataType) -> pa.Table:
    rows = pa.array(typed_rows(file, kind), kind)
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])


def struct_type(schema: str, place: Place) -> pa.DataType:
    """The rows that a source's `schema` describes; raises BadCase."""
    try:
        kind = parse_type(schema)
    except BadSchema as wrong:
        raise BadCase([Problem(f"its schema cannot be used for a test: {wrong}", place)]) from wrong
    if not pa.types.is_struct(kind):
        raise BadCase([Problem("its schema is not one of columns: id BIGINT, …", place)])
    return kind


def json_text(value: Any) -> str:
    """JSON as it would be written by hand; Decimals are numbers."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        inside = (f"{json.dumps(str(k), ensure_ascii=False)}: {json_text(v)}"
                  for k, v in value.items())  # fmt: skip
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def cut(text: str, chars: int = SHOWN_CHARS) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadLine(f"{name!r} is there twice")
        found[name] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise BadLine(f'{text} is not JSON; write it as a text: "{text}"')
