"""YAML into nodes that know where they stand.

What a value means is left to the table of keys: here every scalar is text, so that `no` is a word
and `1.10` keeps its zero. Anchors and aliases work; tags and merge keys (`<<`) are problems. Nodes
are counted with what aliases repeat, so that no small file becomes a large one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from ottla.pipelines.language.model import Piece
from ottla.pipelines.language.problems import BadPipeline, Place, Problem

FILE_BYTES_MAX: Final = 256 * 1024
DEPTH_MAX: Final = 32
NODES_MAX: Final = 20_000

NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
# No text for a person, for a path, or for UTF-8.
NO_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True)
class Scalar:
    text: str
    place: Place
    is_plain: bool = True
    # Which part of the text stands where; for SQL, whose errors have a line and a column.
    pieces: tuple[Piece, ...] = ()
    # A variable in it is not set, which was told already.
    is_lacking: bool = False

    @property
    def is_null(self) -> bool:
        return self.is_plain and self.text in NULLS


@dataclass(frozen=True)
class Items:
    nodes: tuple[Node, ...]
    place: Place


@dataclass(frozen=True)
class Table:
    """Keys and values in the order of the file; no key twice."""

    entries: tuple[tuple[Scalar, Node], ...]
    place: Place

    def get(self, name: str) -> Node | None:
        return next((value for key, value in self.entries if key.text == name), None)


Node: TypeAlias = Scalar | Items | Table


def read_text(file: Path, what: str = "pipeline file") -> str:
    """A file's text, or BadPipeline with one line."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except IsADirectoryError:
        raise _bad(f"{file} is a directory; name the {what} in it") from None
    except FileNotFoundError:
        raise _bad(f"{file} is not there; check the {what}'s name") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _bad(f"{file} cannot be read: {why}") from None
    if len(data) > FILE_BYTES_MAX:
        raise _bad(f"{file} is larger than {FILE_BYTES_MAX // 1024} KiB; is it a {what}?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode()
        line, column = good.count("\n") + 1, len(good) - good.rfind("\n")
        place = Place(file, line, column)
        raise _bad("this byte is no UTF-8; save the file as UTF-8", place) from None


def parse(text: str, file: Path, problems: list[Problem]) -> Table:
    """The document of a pipeline file. What can be passed over is noted, else BadPipeline."""
    composer = _Composer(text, file, problems)
    try:
        root = composer.compose()
    except yaml.MarkedYAMLError as error:
        raise _explained(error, text, file) from None
    except yaml.YAMLError as error:
        place = _place_of_index(text, getattr(error, "position", 0), file)
        raise _bad("a control character is no text in YAML; remove it", place) from None
    except (ValueError, OverflowError):
        # PyYAML's own slips: "\UFFFFFFFF", and version directives with thousands of digits.
        place = Place(file, composer.line, 1)
        raise _bad("a number in this line is too large for YAML", place) from None
    if root is None or (isinstance(root, Scalar) and root.is_null):
        raise _bad("the file is empty; begin with `version: 1`", Place(file, 1, 1))
    if not isinstance(root, Table):
        raise _bad("the file holds no keys; begin with `version: 1`", root.place)
    return root


def parse_value(text: str, place: Place) -> Node:
    """A list or mapping from a command line; every node of it has that one place."""
    problems: list[Problem] = []
    try:
        root = _Composer(text, place.file, problems, at=place).compose()
    except (yaml.YAMLError, ValueError, OverflowError):
        raise _bad("the value is no YAML; put quotes around it", place) from None
    if problems:
        raise BadPipeline(problems)
    return root if root is not None else Scalar("", place)


def _bad(text: str, place: Place | None = None) -> BadPipeline:
    return BadPipeline([Problem(text, place)])


class _Composer:
    """PyYAML's events into our nodes, with an eye on depth and size."""

    def __init__(
        self, text: str, file: Path, problems: list[Problem], at: Place | None = None
    ) -> None:
        self._text = text
        self._file = file
        self._at = at
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._count = 0
        self._problems = problems
        self.line = 1

    def compose(self) -> Node | None:
        events = yaml.parse(self._text, Loader=yaml.SafeLoader)
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                place = self._place(event.start_mark)
                raise _bad("a second document begins here; keep one pipeline per file", place)
            if isinstance(event, yaml.NodeEvent):
                root = self._node(event, events, depth=1)
        return root

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        self.line = event.start_mark.line + 1
        place = self._place(event.start_mark)
        if depth > DEPTH_MAX:
            raise _bad(f"this is nested more than {DEPTH_MAX} levels deep; unfold it", place)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, place)
        if event.tag is not None:
            self._note("tags (`!`) have no meaning here; remove it or put it in quotes", place)
        before = self._count
        self._add(1, place)
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, place)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Items(tuple(self._items(events, depth)), place)
        else:
            node = Table(tuple(self._entries(events, depth)), place)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._count - before)
        return node

    def _alias(self, anchor: str | None, place: Place) -> Node:
        # The anchor is not named: a password may begin with an asterisk.
        if anchor is None or anchor not in self._anchors:
            raise _bad("this alias (`*`) has no anchor before it; text goes in quotes", place)
        node, size = self._anchors[anchor]
        self._add(size, place)
        return node

    def _add(self, nodes: int, place: Place) -> None:
        self._count += nodes
        if self._count > NODES_MAX:
            raise _bad(f"there are more than {NODES_MAX} values, aliases included", place)

    def _items(self, events: Iterator[Any], depth: int) -> Iterator[Node]:
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            yield self._node(event, events, depth + 1)

    def _entries(self, events: Iterator[Any], depth: int) -> Iterator[tuple[Scalar, Node]]:
        seen: dict[str, Place] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                return
            key = self._node(event, events, depth + 1)
            value = self._node(next(events), events, depth + 1)
            if not isinstance(key, Scalar):
                self._note("a key is a word, not a list or a mapping", key.place)
            elif key.is_plain and key.text == "<<":
                self._note("merge keys (`<<`) are not understood; write the keys out", key.place)
            elif key.text in seen:
                # Not named either: what stands in the wrong place may be a password.
                first = seen[key.text].line
                self._note(
                    f"this key is here for the second time, after line {first}; keep one of them",
                    key.place,
                )
            else:
                seen[key.text] = key.place
                yield key, value

    def _scalar(self, event: Any, place: Place) -> Scalar:
        if NO_TEXT.search(event.value):
            self._note("a NUL or half a character is no text; remove it", place)
        if self._at is not None:
            return Scalar(event.value, place, event.style is None)
        pieces = tuple(self._pieces(event))
        return Scalar(event.value, place, event.style is None, pieces)

    def _pieces(self, event: Any) -> Iterator[Piece]:
        """Line by line: where what the file has is in the text, until an escape hides it."""
        raw = self._text[event.start_mark.index : event.end_mark.index]
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        lines = _BREAK.split(raw)
        if event.style in ("'", '"'):
            lines[-1] = lines[-1][:-1]
            lines[0] = lines[0][1:]
            column += 1
        found = 0
        for number, content in enumerate(lines):
            if number == 0 and event.style in ("|", ">"):
                continue
            bare = content.strip(" \t")
            start = (column if number == 0 else 1) + len(content) - len(content.lstrip(" \t"))
            if event.style == "'":
                bare = bare.replace("''", "'")
            if not bare:
                continue
            offset = event.value.find(bare, found)
            if offset < 0:
                break
            found = offset + len(bare)
            yield Piece(offset, len(bare), Place(self._file, line + number, start))

    def _place(self, mark: Any) -> Place:
        return self._at or Place(self._file, mark.line + 1, mark.column + 1)

    def _note(self, text: str, place: Place) -> None:
        self._problems.append(Problem(text, place))


def shown(text: str, chars_max: int = 60) -> str:
    """A name or value in a line: short, and on one line."""
    flat = " ".join(text.split())
    flat = "".join(each if each.isprintable() else "�" for each in flat)
    return flat if len(flat) <= chars_max else f"{flat[:chars_max]}…"


# What PyYAML says, and what a person needs to hear. Its own words may quote the file, a secret
# perhaps, so they are never printed.
_WORDS: Final = (
    (r"character '\\t'", "a tab is here where YAML allows only spaces; use spaces"),
    (r"cannot start any token", "a value cannot begin with this character; put it in quotes"),
    (r"mapping values are not allowed", "a `: ` is not allowed here; put the value in quotes, or "
     "check the indentation"),
    (r"could not find expected ':'", "a `:` is missing after the key before this; add it, or "
     "check the indentation"),
    (r"unexpected end of stream", "the quote that begins here is never closed; close it"),
    (r"',' or '[\]}]'", "a list or mapping is not closed; add the missing comma or bracket before "
     "this"),
    (r"<block end>", "the indentation is not that of the lines before; line it up"),
    (r"escape", "a backslash in double quotes is an escape; double it, or use single quotes"),
    (r"sequence entries", "a `- ` is not allowed here; check the indentation"),
    (r"tag|URI|'!'", "tags (`!`) have no meaning here; remove it or put it in quotes"),
    (r"indentation indicator|comment or a line break", "the text after `|` or `>` begins on the "
     "next line; move it there"),
)  # fmt: skip


def _explained(error: yaml.MarkedYAMLError, text: str, file: Path) -> BadPipeline:
    problem = error.problem or ""
    words = next((words for part, words in _WORDS if re.search(part, problem)), None)
    mark = error.problem_mark or error.context_mark
    if "unexpected end of stream" in problem:
        mark = error.context_mark or mark
    place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file, 1, 1)
    if mark is not None and text[max(mark.index - 1, 0) : mark.index + 1] == "${":
        words = 'within braces a variable needs quotes; write "${NAME}"'
    return _bad(words or "this is no YAML; check quotes, brackets and indentation", place)


def _place_of_index(text: str, index: int, file: Path) -> Place:
    before = _BREAK.split(text[:index])
    return Place(file, len(before), len(before[-1]) + 1)
