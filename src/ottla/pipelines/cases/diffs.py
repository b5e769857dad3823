"""What a view gave beside what was expected: order does not matter, duplicates count."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from ottla.pipelines.cases.expected_rows import Expected, ExpectedRow

SHOWN_ROWS_MAX: Final = 10
SHOWN_CHARS_MAX: Final = 400
# Beyond so many pairs of rows nobody looks for those that nearly match.
PAIRS_MAX: Final = 40_000
# Sums of doubles depend on their order in the last digits.
DIGITS: Final = 12

RED, GREEN, YELLOW, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """An expected row and one that is like it but for some columns."""

    expected: ExpectedRow
    found: Row
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Diff:
    expected: Expected
    rows_found: int
    missing: tuple[ExpectedRow, ...]
    unexpected: tuple[Row, ...]
    pairs: tuple[Pair, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.pairs)


def compare(expected: Expected, found: Sequence[Row]) -> Diff:
    """Empty (false) when the rows are the same, each as often."""
    columns = expected.columns
    left = Counter(comparable(row, columns) for row in found)
    missing: list[ExpectedRow] = []
    for row in expected.rows:
        key = comparable(row.values, columns)
        if left[key] > 0:
            left[key] -= 1
        else:
            missing.append(row)
    unexpected: list[Row] = []
    for one in reversed(found):
        key = comparable(one, columns)
        if left[key] > 0:
            left[key] -= 1
            unexpected.append(one)
    unexpected.reverse()
    pairs = _pairs(missing, unexpected, columns)
    taken = {place for _, place in pairs}
    wanted = {at for at, _ in pairs}
    return Diff(
        expected=expected,
        rows_found=len(found),
        missing=tuple(row for at, row in enumerate(missing) if at not in wanted),
        unexpected=tuple(row for at, row in enumerate(unexpected) if at not in taken),
        pairs=tuple(_pair(missing[at], unexpected[place], columns) for at, place in pairs),
    )


def comparable(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(_comparable(row[name]) for name in columns)


def render(diff: Diff, name: str, *, coloured: bool) -> Iterator[str]:
    """Lines for a person; rows are written so that they can be copied into the expected file."""
    columns = diff.expected.columns
    yield (
        f"{name} is not as in {diff.expected.file}: "
        f"{_rows(len(diff.expected.rows))} expected, {diff.rows_found} found"
    )
    kinds: tuple[tuple[str, list[str]], ...] = (
        (YELLOW, [_pair_line(pair, columns) for pair in diff.pairs[:SHOWN_ROWS_MAX]]),
        (RED, [_missing_line(row, columns) for row in diff.missing[:SHOWN_ROWS_MAX]]),
        (GREEN, [f"+ unexpected     {row_text(row, columns)}"
                 for row in diff.unexpected[:SHOWN_ROWS_MAX]]),
    )  # fmt: skip
    for colour, lines in kinds:
        for line in lines:
            short = line if len(line) <= SHOWN_CHARS_MAX else line[: SHOWN_CHARS_MAX - 1] + "…"
            yield f"  {colour}{short}{PLAIN}" if coloured else f"  {short}"
    all_rows = (diff.pairs, diff.missing, diff.unexpected)
    hidden = sum(max(len(rows) - SHOWN_ROWS_MAX, 0) for rows in all_rows)
    if hidden:
        yield f"  … and {_rows(hidden)} more"


def row_text(row: Row, columns: Sequence[str]) -> str:
    return value_text({name: row[name] for name in columns})


def value_text(value: Any) -> str:
    """As it would stand in an expected file."""
    if isinstance(value, Mapping):
        inside = (f"{_name(key)}: {value_text(one)}" for key, one in value.items())
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f'"{value.isoformat()}"'
        return f'"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"'
    if isinstance(value, date):
        return f'"{value.isoformat()}"'
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, float) and not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    return json.dumps(value, ensure_ascii=False, default=str)


def _name(key: Any) -> str:
    text = value_text(key)
    return text if text.startswith('"') else f'"{text}"'


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _missing_line(row: ExpectedRow, columns: Sequence[str]) -> str:
    return f"- missing {_line(row):>8} {row_text(row.values, columns)}"


def _pair_line(pair: Pair, columns: Sequence[str]) -> str:
    same = [name for name in columns if name not in pair.columns]
    wrong = (
        f"{name} is {value_text(pair.found[name])}, "
        f"expected {value_text(pair.expected.values[name])}"
        for name in pair.columns
    )
    return (
        f"~ differs {_line(pair.expected):>8} {row_text(pair.expected.values, same)}: "
        + "; ".join(wrong)
    )


def _line(row: ExpectedRow) -> str:
    return f"line {row.line}"


def _pair(expected: ExpectedRow, found: Row, columns: Sequence[str]) -> Pair:
    wrong = (name for name in columns
             if _comparable(expected.values[name]) != _comparable(found[name]))  # fmt: skip
    return Pair(expected, found, tuple(wrong))


def _pairs(
    missing: Sequence[ExpectedRow], unexpected: Sequence[Row], columns: Sequence[str]
) -> list[tuple[int, int]]:
    """The places of missing rows, each with that of the unexpected row nearest to it.

    Half of the columns have to agree, and no row has two partners.
    """
    if len(missing) * len(unexpected) > PAIRS_MAX:
        return []
    wanted = [comparable(row.values, columns) for row in missing]
    there = [comparable(row, columns) for row in unexpected]
    near: list[tuple[int, int, int]] = []
    for at, one in enumerate(wanted):
        for place, other in enumerate(there):
            differ = sum(a != b for a, b in zip(one, other, strict=True))
            if differ * 2 <= len(columns) and differ < len(columns):
                near.append((differ, at, place))
    chosen: dict[int, int] = {}
    for _, at, place in sorted(near):
        if at not in chosen and place not in chosen.values():
            chosen[at] = place
    return sorted(chosen.items())


def _comparable(value: Any) -> Any:
    """Equal and hashable where a person would call two values the same."""
    if isinstance(value, Mapping):
        items = ((_comparable(key), _comparable(one)) for key, one in value.items())
        return tuple(sorted(items, key=repr))
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.{DIGITS}g}")
    return value
