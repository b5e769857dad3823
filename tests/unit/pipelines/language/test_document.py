"""YAML with places: what is no YAML, or too much of it, is one line with a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.language.document import (
    DEPTH_MAX,
    FILE_BYTES_MAX,
    NODES_MAX,
    Items,
    Scalar,
    Table,
    parse,
    read_text,
)
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.language.problems import BadPipeline, Place, Problem
from unit.pipelines.pipeline_files import SHOP, problems, write

FILE = Path("p.yaml")


def at(line: int, column: int) -> Place:
    return Place(FILE, line, column)


def test_nodes_know_where_they_stand() -> None:
    root = parse("a: 1\nb:\n  - x\n  - {c: 'y'}\n", FILE, [])
    assert root.place == at(1, 1)
    items = root.get("b")
    assert isinstance(items, Items)
    assert items.place == at(3, 3)
    first, table = items.nodes
    assert (first.place, table.place) == (at(3, 5), at(4, 5))
    assert isinstance(table, Table)
    assert [(key.text, key.place, value.place) for key, value in table.entries] == [
        ("c", at(4, 6), at(4, 9))
    ]


@pytest.mark.parametrize("text", ["no", "on", "1.10", "0777", "2026-01-31", "1e3", "0x10"])
def test_a_scalar_is_the_text_that_was_written(text: str) -> None:
    value = parse(f"a: {text}", FILE, []).get("a")
    assert isinstance(value, Scalar)
    assert (value.text, value.is_null) == (text, False)


@pytest.mark.parametrize(
    ("text", "is_null"), [("", True), ("~", True), ("null", True), ("''", False)]
)
def test_nothing_is_nothing_unless_it_is_quoted(text: str, is_null: bool) -> None:
    value = parse(f"a: {text}", FILE, []).get("a")
    assert isinstance(value, Scalar)
    assert value.is_null is is_null


def test_aliases_repeat_what_an_anchor_holds() -> None:
    root = parse("a: &x {k: v}\nb: *x\n", FILE, [])
    assert root.get("a") == root.get("b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: the file is empty; begin with `version: 1`"),
        ("# only a comment\n", "1:1: the file is empty; begin with `version: 1`"),
        ("---\n...\n", "1:1: the file is empty; begin with `version: 1`"),
        ("- a\n- b\n", "1:1: the file holds no keys; begin with `version: 1`"),
        ("just words", "1:1: the file holds no keys; begin with `version: 1`"),
        ("a:\n\t- b\n", "2:1: a tab is here where YAML allows only spaces; use spaces"),
        ("a: b: c\n", "1:5: a `: ` is not allowed here; put the value in quotes, or check the "
         "indentation"),
        ("a: 'x\nb: 1\n", "1:4: the quote that begins here is never closed; close it"),
        ("a: [1, 2\nb: 3\n", "2:2: a list or mapping is not closed; add the missing comma or "
         "bracket before this"),
        ("a: {b: ${C}}\n", '1:9: within braces a variable needs quotes; write "${NAME}"'),
        ("a: 1\n  b: 2\n", "2:4: a `: ` is not allowed here; put the value in quotes, or check the "
         "indentation"),
        ("a:\n    b: 1\n  c: 2\n", "3:3: the indentation is not that of the lines before; line it "
         "up"),
        ("a: @x\n", "1:4: a value cannot begin with this character; put it in quotes"),
        ('a: "\\q"\n', "1:6: a backslash in double quotes is an escape; double it, or use single "
         "quotes"),
        ("a: *nothing\n", "1:4: this alias (`*`) has no anchor before it; text goes in quotes"),
        ("a: &x [*x]\n", "1:8: this alias (`*`) has no anchor before it; text goes in quotes"),
        ("a: |x\n  b\n", "1:5: the text after `|` or `>` begins on the next line; move it there"),
        ("a: 1\n---\nb: 2\n", "2:1: a second document begins here; keep one pipeline per file"),
        ("a: \x07\n", "1:4: a control character is no text in YAML; remove it"),
        ('a: 1\nb: "\\UFFFFFFFF"\n', "2:1: a number in this line is too large for YAML"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_is_one_line_with_its_place(
    text: str, expected: str, tmp_path: Path
) -> None:
    assert problems(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "this key is here for the second time, after line 1; keep one of "
         "them"),
        ("? [x]\n: 1\n", "a key is a word, not a list or a mapping"),
        ("a: !!int 3\n", "tags (`!`) have no meaning here; remove it or put it in quotes"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "merge keys (`<<`) are not understood; write the keys out"),
        ('a: "x\\0y"\n', "a NUL or half a character is no text; remove it"),
        ('a: "\\ud800"\n', "a NUL or half a character is no text; remove it"),
    ],
)  # fmt: skip
def test_what_can_be_passed_over_is_noted_and_the_rest_is_read(text: str, expected: str) -> None:
    noted: list[Problem] = []
    parse(text, FILE, noted)
    assert [problem.text for problem in noted] == [expected]


def test_a_repeated_key_is_told_beside_what_else_is_wrong(tmp_path: Path) -> None:
    told = problems(tmp_path, SHOP + "name: other\nsurces: {}\n")
    assert told == [
        "23:1: this key is here for the second time, after line 2; keep one of them",
        "24:1: the key surces is unknown; did you mean sources?",
    ]


def test_many_small_aliases_do_not_become_a_large_document() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(BadPipeline, match=f"more than {NODES_MAX} values, aliases included"):
        parse("\n".join(lines), FILE, [])


def test_depth_has_an_end() -> None:
    deep = DEPTH_MAX - 1
    parse("a: " + "[" * (deep - 1) + "]" * (deep - 1), FILE, [])
    for text in ("a: " + "[" * 100_000, "a: " + "{b: " * 5_000, "- " * 5_000):
        with pytest.raises(BadPipeline, match=f"more than {DEPTH_MAX} levels deep"):
            parse(text, FILE, [])


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadPipeline, match=r"gone\.yaml is not there; check the pipeline file's"):
        read_pipeline(tmp_path / "gone.yaml")
    with pytest.raises(BadPipeline, match="is a directory; name the pipeline file in it"):
        read_pipeline(tmp_path)
    with pytest.raises(BadPipeline, match="cannot be read: Not a directory"):
        read_pipeline(write(tmp_path, SHOP) / "p.yaml")
    with pytest.raises(BadPipeline, match="cannot be read: embedded null byte"):
        read_pipeline(tmp_path / "a\0b")


def test_bytes_that_are_no_utf8_are_pointed_at(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes("version: 1\nname: ü".encode() + b"\xff\n")
    with pytest.raises(BadPipeline) as caught:
        read_text(file)
    assert str(caught.value) == f"{file}:2:8: this byte is no UTF-8; save the file as UTF-8"


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + SHOP.encode())
    assert read_pipeline(file, environment={}).name == "shop-totals"
    assert read_text(file).startswith("version: 1")


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = write(tmp_path, "#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(BadPipeline, match="is larger than 256 KiB; is it a pipeline file"):
        read_text(file)
