"""Tables, JSON lines, and the question before something is destroyed."""

from __future__ import annotations

import json

import pytest

from ottla.cli import output
from ottla.cli.failures import WrongUsage

ROWS = [
    {"topic": "orders", "lag": 7, "in_sync": [1, 2], "member": None},
    {"topic": "x", "lag": 1000, "in_sync": [], "member": "a-1"},
]


def test_table_is_as_wide_as_it_needs_be() -> None:
    assert output.table(ROWS) == (
        "TOPIC    LAG  IN-SYNC  MEMBER\norders     7  1,2      -\nx       1000  -        a-1\n"
    )


def test_colours_are_only_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(ROWS, as_json=False)
    assert "\x1b" not in capsys.readouterr().out
    assert output.table(ROWS, coloured=True).startswith("\x1b[1mTOPIC")


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(ROWS, as_json=True)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_nothing_to_show_is_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    output.show([], as_json=False)
    assert capsys.readouterr().out == ""


def test_destroying_without_a_person_needs_yes() -> None:
    with pytest.raises(WrongUsage, match=r"Delete it\? Nobody is there to ask; add --yes"):
        output.confirm("Delete it?", yes=False)
    output.confirm("Delete it?", yes=True)


def test_words_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain("No.")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "ottla: No.\n")
