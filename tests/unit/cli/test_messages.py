"""How `ottla consume` writes a message."""

from __future__ import annotations

import json

import pytest

from ottla.cli.failures import WrongUsage
from ottla.cli.messages import Shown, compile_format, unescaped

MESSAGE = Shown("orders", 2, 41, 1700, b"k", "wért".encode(), [("a", b"1"), ("b", None)])
EMPTY = Shown("orders", 0, 0, -1, None, None, [])


def test_each_field_has_its_letter() -> None:
    writer = compile_format(r"%t/%p@%o %T %k=%v [%h] 100%%\n\t")
    assert writer(MESSAGE) == "orders/2@41 1700 k=wért [a=1,b=] 100%\n\t".encode()


def test_absent_key_and_value_are_written_as_nothing() -> None:
    assert compile_format("%k|%v|%h")(EMPTY) == b"||"


@pytest.mark.parametrize("text", ["%x", "50%"])
def test_unknown_field_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(WrongUsage, match="%t %p %o %T %k %v %h"):
        compile_format(text)


def test_escapes_are_those_of_a_shell_user() -> None:
    assert unescaped(r"a\tb\\n\0\x\q") == "a\tb\\n\0\\x\\q"
    assert unescaped("end\\") == "end\\"


def test_json_is_one_line_and_marks_bytes_that_are_no_text() -> None:
    line = compile_format("json")(MESSAGE._replace(key=b"\xff\x00"))
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "timestamp": 1700,
        "key": {"base64": "/wA="},
        "value": "wért",
        "headers": [["a", "1"], ["b", None]],
    }


def test_json_keeps_null_apart_from_empty() -> None:
    assert json.loads(compile_format("json")(EMPTY))["value"] is None
    assert json.loads(compile_format("json")(EMPTY._replace(value=b"")))["value"] == ""
