"""Spark names a line and a column of the SQL; a person wants those of the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipelines.language.builder import sql_of
from ottla.pipelines.language.document import Scalar, Table, parse
from ottla.pipelines.language.model import Sql
from ottla.pipelines.language.problems import Place
from ottla.pipelines.language.variables import Variables
from unit.pipelines.pipeline_files import read, shop_with

# The words of each are different, so that each is found where it stands.
STYLES = {
    "literal": 'v: |\n    SELECT one,\n      two\n\n    FROM three\n    WHERE four\n',
    "literal with blank lines first": 'v: |-\n\n\n  SELECT one,\n    two FROM three WHERE four\n',
    "literal with its own indentation":
        'v: |2\n     SELECT one,\n   two FROM three\n  WHERE four\n',
    "literal with a comment after the sign":
        'v: | # say SELECT\n  SELECT one, two\n  FROM three WHERE four\n',
    "literal with Windows' line ends":
        'v: |\r\n  SELECT one, two\r\n  FROM three\r\n  WHERE four\r\n',
    "folded": 'v: >\n  SELECT one,\n  two\n  FROM three\n\n  WHERE four\n',
    "folded with deeper lines": 'v: >-\n  SELECT one,\n     two\n     FROM three\n  WHERE four\n',
    "plain": 'v: SELECT one, two FROM three WHERE four\n',
    "plain over several lines": 'v: SELECT one, two\n   FROM three\n     WHERE four\n',
    "plain, below its key": 'v:\n  SELECT one, two\n  FROM three WHERE four\n',
    "single quotes": "v: 'SELECT one, two FROM three WHERE four'\n",
    "single quotes over several lines": "v: 'SELECT one, two\n\n     FROM three\n   WHERE four'\n",
    "double quotes": 'v: "SELECT one, two FROM three WHERE four"\n',
    "double quotes over several lines": 'v: "SELECT one, two\n  FROM three\n  WHERE four"\n',
    "in braces": 'x: {a: 1, v: SELECT one\n   two FROM three WHERE four}\n',
    "with variables":
        'v: |\n  SELECT one, ${SHORT} two\n  FROM ${LONG:-x}.three\n  WHERE ${LONG} four\n',
    "folded, with variables":
        'v: >\n  SELECT one, ${LONG} two\n  FROM ${SHORT}.three\n  WHERE four\n',
    "plain, with variables":
        'v: SELECT one, $${SHORT} two ${SHORT}\n   FROM ${LONG}\n  three WHERE four\n',
}  # fmt: skip
ENVIRONMENT = {"SHORT": "s", "LONG": "a_rather_long_value\nwith a line of its own"}


def sql_in(text: str) -> Sql:
    table = parse(text, Path("p.yaml"), [])
    filled = Variables(ENVIRONMENT, [], set()).fill_table(table)
    inner = filled.get("x")
    scalar = (inner if isinstance(inner, Table) else filled).get("v")
    assert isinstance(scalar, Scalar)
    return sql_of(scalar)


@pytest.mark.parametrize("text", STYLES.values(), ids=list(STYLES))
def test_every_word_of_the_sql_is_found_in_the_file(text: str) -> None:
    sql = sql_in(text)
    lines = text.splitlines()
    for word in ("SELECT", "one", "two", "FROM", "three", "WHERE", "four"):
        offset = re.search(rf"\b{word}\b", sql.text).start()  # type: ignore[union-attr]
        line = sql.text.count("\n", 0, offset) + 1
        place = sql.at(line, offset - sql.text.rfind("\n", 0, offset))
        assert lines[place.line - 1][place.column - 1 :].startswith(word)


@pytest.mark.parametrize("name", ["literal", "plain", "single quotes", "double quotes"])
def test_simple_sql_needs_no_more_than_its_place_and_indentation(name: str) -> None:
    assert sql_in(STYLES[name]).pieces == ()


def test_lines_that_are_alike_have_places_of_their_own() -> None:
    sql = sql_in("v: >\n  SELECT a,\n  b,\n  a,\n  b,\n  a\n")
    columns = [found.start() + 1 for found in re.finditer(r"\b[ab]\b", sql.text)]
    assert [sql.at(1, column).line for column in columns] == [2, 3, 4, 5, 6]


def test_the_value_of_a_variable_stands_where_the_variable_does() -> None:
    sql = sql_in(STYLES["with variables"])
    # Into the middle of the value of SHORT, and of the second line of that of LONG.
    assert sql.at(1, sql.text.index("s two") + 1) == Place(Path("p.yaml"), 2, 15)
    line = sql.text.splitlines().index("with a line of its own.three") + 1
    assert sql.at(line, 6) == Place(Path("p.yaml"), 3, 8)


def test_behind_an_escape_the_last_known_place_is_told() -> None:
    sql = sql_in('v: "SELECT \\"a\\"\n  FROM t"\n')
    assert sql.at(1, 30).line == 1


@pytest.mark.parametrize("text", list(STYLES.values()), ids=list(STYLES))
@given(line=st.integers(-1, 20), column=st.integers(-5, 200))
def test_any_line_and_column_has_some_place(text: str, line: int, column: int) -> None:
    place = sql_in(text).at(line, column)
    assert place.line >= 1


def test_sql_in_its_own_file_has_places_there(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "v.sql").write_text("SELECT *\n  FROM orders\n")
    view = read(tmp_path, shop_with(views="views: {v: {file: sql/v.sql}}\n")).views["v"]
    assert isinstance(view.body, Sql)
    assert str(view.body.at(2, 8)) == f"{tmp_path}/sql/v.sql:2:8"


def test_the_long_form_has_places_too(tmp_path: Path) -> None:
    text = shop_with(views="views:\n  v:\n    sql: |\n      SELECT\n        x\n")
    view = read(tmp_path, text).views["v"]
    assert isinstance(view.body, Sql)
    assert str(view.body.at(2, 3)).endswith("p.yaml:9:9")
