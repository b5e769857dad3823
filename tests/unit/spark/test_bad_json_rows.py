"""One bad row among many: the others are parsed in bulk, and nobody can tell by the result."""

from __future__ import annotations

import ctypes
import json
import mmap
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from ottla.spark.formats import json_column, json_screen_plain, json_screen_tables
from ottla.spark.formats.spark_types import parse_type
from unit.spark.json_kit import EVERYTHING, OBJECTS, column

KIND = parse_type(EVERYTHING)
SCREENS = {"numba": json_screen_tables.screen, "python": json_screen_plain.screen}


@pytest.fixture(params=SCREENS)
def screen(request: pytest.FixtureRequest) -> json_column.Screen:
    return SCREENS[request.param]


def shown(array: pa.Array) -> str:
    """As text, because NaN is not itself."""
    return str(array.to_pylist())


def same(parsed: json_column.Parsed | None, values: list[bytes | None]) -> bool:
    assert parsed is not None
    parsed[0].validate(full=True)
    typed, errors = json_column._singly(column(*values), KIND)
    return shown(parsed[0]) == shown(typed) and parsed[1].equals(errors)


def damaged(good: bytes, at: int, patch: bytes) -> bytes:
    at %= len(good) + 1
    return good[:at] + patch + good[at + len(patch) :]


DAMAGED = some.builds(damaged, OBJECTS, some.integers(0, 200), some.binary(max_size=3))
CUT = some.builds(lambda good, size: good[:-size], OBJECTS, some.integers(1, 9))
VALUES = some.one_of(some.none(), some.binary(max_size=6), OBJECTS, DAMAGED, CUT)


@settings(deadline=None)
@given(
    some.lists(VALUES, max_size=24), some.integers(1, 8), some.integers(0, 3), some.integers(2, 4)
)
@example([b"{}", b"", b"{}", b'{"i":"x"}', b"{}", b"{}"], 2, 0, 2)
def test_any_mixture_in_any_pieces_is_as_if_each_row_were_alone(
    values: list[bytes | None], at_once: int, singly: int, pieces: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_column, "ROWS_AT_ONCE", at_once)
        patch.setattr(json_column, "ROWS_FIRST", max(at_once // 2, 1))
        patch.setattr(json_column, "ROWS_SINGLY", max(singly, 1))
        patch.setattr(json_column, "PIECES", pieces)
        assert same(json_column.parse_column(column(*values), KIND), values)


@settings(deadline=None)
@given(some.lists(VALUES, max_size=8), some.sampled_from([*SCREENS.values()]))
def test_rows_beside_bad_ones_are_the_same_in_bulk(
    values: list[bytes | None], screen: json_column.Screen
) -> None:
    screened = json_column._screened(column(*values), KIND, screen)
    assert screened is None or same(screened, values)


@settings(deadline=None, max_examples=300)
@given(some.lists(some.one_of(OBJECTS, DAMAGED, CUT), min_size=1, max_size=8))
def test_what_the_kernel_lets_through_the_parser_takes(values: list[bytes]) -> None:
    """Else the whole piece would be parsed again, in smaller ones."""
    screened = json_screen_tables.screen(column(*values), KIND)
    for value, is_good in zip(values, screened, strict=True):
        assert not is_good.as_py() or json_column._bulk(column(value), KIND) is not None


GOOD = {
    "i": 1, "d": 2.25, "t": "2026-01-05T09:00:00.000+00:00", "s": "ä\\\"/", "n": {"b": True},
    "l": [1, 2.5, None], "o": None,
}  # fmt: skip
NARROW = parse_type(
    "i INT, d DECIMAL(10,2), t TIMESTAMP, s STRING, n STRUCT<b: BOOLEAN>, l ARRAY<DOUBLE>"
)


def test_what_is_good_is_not_held_back(screen: json_column.Screen) -> None:
    good = [
        json.dumps(GOOD).encode(),
        json.dumps(GOOD, indent=2, ensure_ascii=False).encode(),
        None,
        b" {} ",
        json.dumps({"x": [GOOD, [], {}, "\U0001f600", -1.5e-3, False]}).encode(),
        b'{"d": -12345678.90, "t": "2024-02-29", "i": -2147483648, "l": [-0.5E+10, 7]}',
        b'{"t": "2024-01-02 03:04", "s": "", "n": {}, "l": []}',
    ]
    bad = [b"", b"{", b"[1]", b'{"i": 1.5}', b'{"d": 1e9}', b'{"t": "now"}', b'{"n": {"b": 1}}']
    assert screen(column(*good, *bad), NARROW).to_pylist() == [True] * 7 + [False] * 7


@pytest.mark.parametrize(
    "text",
    [
        '{"i": 2147483648}', '{"i": -2147483649}', '{"i": 01}', '{"i": 1.0}', '{"i": 1,}',
        '{"i": 1, "i": 2}', '{"i": 1} x', '{"i": 1}{}', '{"i" 1}', '{"i": nul}', '{"i": }',
        '{"d": 123456789}', '{"d": 0.001}', '{"d": 12345678.100}', '{"x": 1e400}',
        '{"t": "2024-02-30"}', '{"t": "2023-02-29"}',
        '{"t": "2024-01-02T24:00:00Z"}', '{"t": "2024-01-02T03:04:05+19:00"}', '{"t": 5}',
        '{"s": 5}', '{"s": "\\ud800"}', '{"s": "\\x"}', '{"s": "a\tb"}', '{"s": "abc', '{"x": tru}',
        '{"n": []}', '{"n": {"b": tru}}', '{"l": {}}', '{"l": [1,]}', '{"l": [1 2]}', '{"l": [1}',
        '{"x": [}', '{"x": {"a"}}', '{"x": "\\u12g4"}', '{"x": -}', '{"x": 1e}', '{"x": 1.}',
        "null", "\ufeff{}", "\x0b{}", "{}\0",
    ],
)  # fmt: skip
def test_what_is_bad_is_held_back_by_the_kernel(text: str) -> None:
    values = column("{}", text, '{"i": 7}')
    assert json_screen_tables.screen(values, NARROW).to_pylist() == [True, False, True]


def test_what_is_not_utf8_is_held_back_wherever_it_stands() -> None:
    wrong = (
        b"\xff",
        b"\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\x80",
    )
    texts = [
        before + one for one in wrong for before in (b"", b"seven..", b"eight...", b"\xc3\xa4")
    ]
    values = column(*(b'{"s": "' + text + b'"}' for text in texts))
    assert not any(json_screen_tables.screen(values, NARROW).to_pylist())


def test_the_kernel_reads_slices_and_no_byte_too_far() -> None:
    whole = column('{"i": 1}', '{"i": 2', "}", '{"s": "', '"}', None, '{"i": 3}')
    assert json_screen_tables.screen(whole, NARROW).to_pylist() == [True, *[False] * 4, True, True]
    assert json_screen_tables.screen(whole.slice(1, 1), NARROW).to_pylist() == [False]
    assert json_screen_tables.screen(whole.slice(5), NARROW).to_pylist() == [True, True]
    assert json_screen_tables.screen(pa.array([None], pa.binary()), NARROW).to_pylist() == [True]


def test_the_kernel_reads_no_byte_after_its_value() -> None:
    """Each value ends where the memory does: a byte too far would end this process."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) == 0
    whole = (
        b'{"x":["\\ud83d\\ude00",\xc3\xa4\xf0\x9f\x98\x80"\xf0\x9f\x98\x80",{"y":true,"z":null}],'
        b'"n":{"b":false},"d":-12.50,"l":[-1.5e+10],"t":"2024-02-29T10:20:30.123456+01:00"}'
    )
    starts = [whole, *(whole[at:] for at, byte in enumerate(whole) if byte in b'{["-tfn2\xf0')]
    for text in (b"{" + one[:size] for one in starts for size in range(len(one))):
        memory[page - len(text) : page] = text
        data = pa.foreign_buffer(start + page - len(text), len(text), memory)
        offsets = pa.array([0, len(text)], pa.int32()).buffers()[1]
        value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
        json_screen_tables.screen(value, NARROW)


def test_a_value_deeper_than_the_kernel_looks_is_left_to_the_rows() -> None:
    deep, deeper = (b'{"x":' + b"[" * depth + b"]" * depth + b"}" for depth in (60, 200))
    assert json_screen_tables.screen(column(deep, deeper), NARROW).to_pylist() == [True, False]
    parsed, errors = json_column.parse_column(column(*[deep] * 300, deeper, b"{"), NARROW)
    assert [at for at, error in enumerate(errors.to_pylist()) if error is not None] == [301]
    assert parsed.null_count == 0


@pytest.mark.parametrize("depth", [300, 600, 900, 100_000])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"x":', "}")])
def test_a_value_deeper_than_functions_can_be_called_is_not_the_end(
    depth: int, begin: str, end: str
) -> None:
    deep = begin * depth + "1" + end * depth
    rows = [f'{{"{name}":{deep}}}' for name in ("i", "m", "s")]
    for company in ([], ["{}"] * 300):
        typed, errors = json_column.parse_column(column(*rows, *company), KIND)
        assert [one.is_valid for one in errors] == [
            True,
            True,
            depth > 950,
            *[False] * len(company),
        ]
        assert typed[2]["s"].as_py() == (None if depth > 950 else deep)


@pytest.mark.parametrize("rows", [600, 40_000])
@pytest.mark.parametrize("every", [7, 300])
def test_bad_rows_among_many_are_found(rows: int, every: int) -> None:
    texts = ("{", '{"a":"x"}', "", '{"a":99999999999}', "\xff", '{"a":1} 2')
    values: list[Any] = [
        texts[i % len(texts)] if i % every == every // 2 else f'{{"a":{i}}}' for i in range(rows)
    ]
    typed, errors = json_column.parse_column(column(*values), parse_type("a INT"))
    bad = {i for i in range(rows) if i % every == every // 2}
    assert {at for at, error in enumerate(errors.to_pylist()) if error is not None} == bad
    found = [row and row["a"] for row in typed.to_pylist()]
    assert found == [None if i in bad else i for i in range(rows)]


@pytest.mark.parametrize(
    "text",
    [
        '\x0b{"t":null}', '{"t":null}\x0c', '{"t":"2024-01-02T03Z"}', '{"n":"2024-01-02T03-01"}',
        '{"t":"2024-01-02T03:04:05+19:00"}', '{"t":"2024-01-02T03:04:05-1900"}',
        '{"t":"2024-01-02T03:04:05+23"}', '{"t":"2024-01-02T03+01"}', '{"d":Inf}', '{"f":-Inf}',
        '{"other":[1, Inf ]}', '{"x":"ä"}', '{"x":"\\ud83d\\ude00"}',
    ],
)  # fmt: skip
def test_a_row_is_refused_in_good_company_too(text: str) -> None:
    """Arrow's parser takes these; whether it was asked must not matter."""
    for values in ([text], [text, "{"], [text] * 2 + ["{}"] * 300):
        _, errors = json_column.parse_column(column(*values), KIND)
        assert errors[0].is_valid


def test_times_with_and_without_a_zone_are_parsed_together() -> None:
    texts = [
        "2024-01-02",
        "2024-01-02T03",
        "2024-01-02T03:04:05Z",
        "2024-01-02 03:04:05",
        "2024-01-02T03:04+0230",
    ]
    values = [None, *(json.dumps({"t": text, "i": 1}).encode() for text in texts), b'{"i": 2}']
    typed = json_column._bulk(column(*values), KIND)
    assert typed is not None
    assert same((typed, pa.nulls(len(values), pa.string())), values)


@given(some.text(alphabet="0123456789-:TZ +.", max_size=12))
@example("T03")
@example("T03:04-0230")
def test_a_time_is_read_alike_alone_and_in_company(rest: str) -> None:
    value = json.dumps({"t": f"2024-01-02{rest}", "n": f"2024-01-02{rest}"}).encode()
    typed = json_column._bulk(column(value), KIND)
    assert typed is None or same((typed, pa.nulls(1, pa.string())), [value])
    if json_screen_tables.screen(column(value), KIND)[0].as_py():
        assert typed is not None
