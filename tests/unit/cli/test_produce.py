"""What `ottla produce` makes of its input."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.failures import CommandFailed
from ottla.cli.produce import Item, _items


def items(file: Path, separator: bytes | None = None, null: str | None = None) -> list[Item]:
    return list(_items([str(file)], separator, null, whole=False))


def test_each_line_is_a_message_whatever_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\r\n\nlast \xff")
    assert [item.value for item in items(file)] == [b"one", b"two", b"", b"last \xff"]
    assert sum(item.bytes_read for item in items(file)) == file.stat().st_size


def test_key_ends_at_the_first_separator(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"k=>v=>w\n=>empty key\n")
    assert [(item.key, item.value) for item in items(file, b"=>")] == [
        (b"k", b"v=>w"),
        (b"", b"empty key"),
    ]


def test_line_without_a_separator_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"k:v\nnothing\n")
    with pytest.raises(CommandFailed, match="line 2 has no ':'"):
        items(file, b":")


def test_marker_stands_for_null(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"k:NULL\nk:\n")
    assert [item.value for item in items(file, b":", "NULL")] == [None, b""]


def test_whole_file_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "blob"
    file.write_bytes(b"a\nb\n")
    assert [item.value for item in _items([str(file)], None, None, whole=True)] == [b"a\nb\n"]
