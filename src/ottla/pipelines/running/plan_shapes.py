"""What of a flow's plan its checkpoint depends on: the order of its streams, and what has state.

Read from the analysed plan as Spark prints it, where `~` marks what streams. Pure text in, values
out; the text differs between versions of Spark, which `checkpoints.py` takes into account.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

_BEGIN: Final = "== Analyzed Logical Plan =="
_END: Final = "== Optimized Logical Plan =="
_BRANCH: Final = re.compile(r"^(?P<indent>(?:[ :]  )*[:+]- )(?P<text>.*)$")
INDENT_CHARS: Final = 3

_SOURCE: Final = re.compile(r"~?CollectMetrics source:(\w+),")
_ALIAS_NODE: Final = re.compile(r"~?SubqueryAlias (?:\S+\.)?`?(\w+)`?$")
_STATEFUL: Final = re.compile(
    r"~(Aggregate|Distinct|Deduplicate|DeduplicateWithinWatermark|GlobalLimit|EventTimeWatermark"
    r"|FlatMapGroups\w*|TransformWithState\w*|Join)\b"
)

# `shop#10`, `n#56L`, `at#12-T120000ms` are `shop`, `n`, `at`: numbers differ in every session.
_ID: Final = re.compile(r"#\d+L?(?:-T\d+ms)?")
_NAME_OF_RESULT: Final = re.compile(r" AS [^#]*?#\d+L?(?:-T\d+ms)?")
_OBJECT: Final = re.compile(r"@[0-9a-f]{5,}\b")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MICROSECONDS: Final = re.compile(r"\b(\d{4,})\b")
_INTERVAL: Final = re.compile(r"cast\((\d+ \w+) as interval\)|INTERVAL ('[^']*' [A-Z ]+)")


@dataclass(frozen=True)
class Stateful:
    """One operator with state: the view it stands in (or the sink), and what it does."""

    where: str
    what: str


@dataclass(frozen=True)
class Shape:
    # Streams in the order of the plan: Spark keeps their offsets by position, not by name.
    streams: tuple[str, ...]
    stateful: tuple[Stateful, ...]


@dataclass
class _Node:
    text: str
    depth: int
    children: list[_Node] = field(default_factory=list)

    def walk(self) -> Iterator[_Node]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def streams(self) -> bool:
        return any(one.text.startswith("~") for one in self.walk())


def shape_of(explained: str, views: Collection[str], sink: str) -> Shape:
    """From what `DataFrame.explain(extended=True)` prints."""
    root = _tree(explained)
    if root is None:
        return Shape((), ())
    streams = dict.fromkeys(
        found[1]
        for node in root.walk()
        if (found := _SOURCE.match(node.text)) is not None and node.streams
    )
    return Shape(tuple(streams), tuple(_stateful(root, views, sink)))


def _tree(explained: str) -> _Node | None:
    section = explained.partition(_BEGIN)[2].partition(_END)[0].strip("\n").split("\n")
    # The first line is the schema.
    if len(section) < 2:
        return None
    root = _Node(section[1], 0)
    path = [root]
    for line in section[2:]:
        found = _BRANCH.match(line)
        if found is None:
            # A text in the query has more than one line.
            path[-1].text += line
            continue
        node = _Node(found["text"], len(found["indent"]) // INDENT_CHARS)
        del path[node.depth :]
        path[-1].children.append(node)
        path.append(node)
    return root


def _stateful(node: _Node, views: Collection[str], where: str) -> Iterator[Stateful]:
    alias = _ALIAS_NODE.match(node.text)
    if alias is not None and alias[1] in views:
        where = alias[1]
    found = _STATEFUL.match(node.text)
    if found is not None and _has_state(node, found[1]):
        yield Stateful(where, _words(node, found[1]))
    for child in node.children:
        yield from _stateful(child, views, where)


def _has_state(node: _Node, kind: str) -> bool:
    """A join with a table needs none."""
    return kind != "Join" or all(child.streams for child in node.children)


def _words(node: _Node, kind: str) -> str:
    text = node.text.removeprefix("~")
    match kind:
        case "Aggregate":
            return _aggregate(node, text)
        case "EventTimeWatermark":
            # The delay may change: what has been dropped stays so, the rest waits longer.
            column = _ID.sub("", text.partition(", ")[2]).partition(":")[0]
            return f"watermark on {column}"
        case "Distinct":
            inner = node.children[0].text if node.children else ""
            return f"SELECT DISTINCT {_plain(inner.removeprefix('~Project '))}"
        case _:
            return _plain(text)


def _aggregate(node: _Node, text: str) -> str:
    """`GROUP BY window(1 minute), shop: sum(amount)`: how results are called does not matter."""
    lists = _lists(text)
    keys = [_plain(one) for one in lists[0]] if lists else []
    results = [_plain(one) for one in lists[1]] if len(lists) > 1 else []
    counted = dict.fromkeys(one for one in results if "(" in one and one not in keys)
    lengths = _window_lengths(node)
    named = [f"{key}({lengths})" if key in ("window", "session_window") else key for key in keys]
    return f"GROUP BY {', '.join(named) or 'nothing'}: {', '.join(counted)}"


def _window_lengths(node: _Node) -> str:
    """A window's length stands in the projection that feeds the aggregate."""
    for below in node.walk():
        if below is node or "precisetimestampconversion" not in below.text:
            continue
        intervals = [one or other for one, other in _INTERVAL.findall(below.text)]
        micros = sorted({int(one) for one in _MICROSECONDS.findall(_ID.sub("", below.text))})
        return ", ".join([*dict.fromkeys(intervals), *map(_duration, micros)])
    return ""


def _duration(us: int) -> str:
    for unit, name in ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min")):
        if us % unit == 0:
            return f"{us // unit} {name}"
    return f"{us / 1_000_000:g} s"


def _plain(text: str) -> str:
    """Without what differs from one session to the next, and without names of results."""
    text = _ID.sub("", _NAME_OF_RESULT.sub("", text))
    return _UUID.sub("", _OBJECT.sub("", text)).strip()


def _lists(text: str) -> list[list[str]]:
    """The bracketed lists of a node, cut at their own commas only."""
    text = _NAME_OF_RESULT.sub("", text)
    lists: list[list[str]] = []
    depth, start = 0, 0
    items: list[str] = []
    for at, char in enumerate(text):
        if char in "[(":
            depth += 1
            if depth == 1:
                start, items = at + 1, []
        elif char in "])":
            depth -= 1
            if depth == 0:
                items.append(text[start:at])
                lists.append([one.strip() for one in items if one.strip()])
        elif char == "," and depth == 1:
            items.append(text[start:at])
            start = at + 1
    return lists
