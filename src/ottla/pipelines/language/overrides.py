"""`--set sources.orders.start=latest`: values put into the document before it is checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ottla.pipelines.language.document import NO_TEXT, Items, Node, Scalar, Table, parse_value
from ottla.pipelines.language.keys import (
    PIPELINE,
    Either,
    Fields,
    Kind,
    Named,
    Settings,
    Texts,
    Variants,
)
from ottla.pipelines.language.problems import BadPipeline, Place, Problem


@dataclass(frozen=True)
class OnCommandLine(Place):
    """A value that stands in no file; it is named as it was given, without the value."""

    def __str__(self) -> str:
        return str(self.file)


def override(root: Table, path: str, text: str) -> Table:
    """The document with this value at the path; what is unknown there, the checker tells."""
    place = OnCommandLine(Path(f"--set {path}".rstrip()), 1, 1)
    if not all(path.split(".")):
        raise BadPipeline([Problem("write it as --set sources.orders.start=latest", place)])
    if NO_TEXT.search(path + text):
        raise BadPipeline([Problem("a NUL or half a character is no text; remove it")])
    changed = _put(root, PIPELINE, path.split("."), text, place)
    assert isinstance(changed, Table)
    return changed


def _put(node: Node | None, kind: Kind | None, parts: list[str], text: str, place: Place) -> Node:
    if not parts:
        return _value(kind, text, place)
    if isinstance(node, Items):
        raise BadPipeline([Problem("this leads into a list; set the whole list", place)])
    table = node if isinstance(node, Table) else Table((), place)
    if isinstance(kind, Settings):
        # Their names have dots themselves.
        parts = [".".join(parts)]
    value = _put(table.get(parts[0]), _below(kind, parts[0]), parts[1:], text, place)
    others = tuple(entry for entry in table.entries if entry[0].text != parts[0])
    # In its old place, so that a mapping keeps the order of the file.
    at = next((i for i, (key, _) in enumerate(table.entries) if key.text == parts[0]), len(others))
    entry = (Scalar(parts[0], place), value)
    return replace(table, entries=(*others[:at], entry, *others[at:]))


def _value(kind: Kind | None, text: str, place: Place) -> Node:
    takes_more = isinstance(kind, Texts | Either | Fields | Named | Variants | Settings)
    if takes_more and text.lstrip()[:1] in ("[", "{"):
        return parse_value(text, place)
    return Scalar(text, place, is_plain=False)


def _below(kind: Kind | None, name: str) -> Kind | None:
    if isinstance(kind, Either):
        kind = kind.long
    if isinstance(kind, Named):
        return kind.item
    tables = [kind] if isinstance(kind, Fields) else []
    if isinstance(kind, Variants):
        tables = [variant.fields for variant in kind.variants]
    return next((key.kind for table in tables for key in table if key.name == name), None)
