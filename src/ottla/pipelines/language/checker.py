"""Nodes held against the table of keys: values of the right type, or problems with places."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from ottla.pipelines.language.document import Items, Node, Scalar, Table, shown
from ottla.pipelines.language.keys import (
    DURATION,
    Choice,
    Duration,
    Either,
    Fields,
    Flag,
    Key,
    Kind,
    Named,
    Settings,
    Start,
    Text,
    Texts,
    Variant,
    Variants,
    Version,
    When,
    Whole,
)
from ottla.pipelines.language.problems import Place, Problem
from ottla.pipelines.language.secrets import redact
from ottla.pipelines.language.variables import Variables
from ottla.spark.spelling import nearest

SECONDS_PER_UNIT: Final[Mapping[str, float]] = {
    "microsecond": 1e-6, "millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600,
    "day": 86_400, "week": 604_800,
}  # fmt: skip


class _Wrong:
    """Stands for a value that was complained about."""


WRONG: Final = _Wrong()


@dataclass
class Found:
    """A mapping's values under its keys, defaults included; `nodes` has what is in the file."""

    path: str
    place: Place
    told_by: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    is_whole: bool = True

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    def place_of(self, name: str) -> Place:
        node = self.nodes.get(name)
        return node.place if node is not None else self.place


def seconds(duration: str) -> float:
    """The length of a duration that was checked."""
    parts = re.findall(r"([0-9]+)\s+([a-z]+?)s?\b", duration.lower())
    return sum(int(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)


class Checker:
    """Notes every problem and goes on, so that a person sees all of them at once."""

    def __init__(self, variables: Variables) -> None:
        self._variables = variables
        self._problems = variables.problems

    def note(self, text: str, place: Place) -> None:
        self._problems.append(Problem(text, place))

    def read(self, kind: Kind, node: Node, path: str) -> Any:
        """The value, or WRONG after a problem was noted."""
        if isinstance(node, Scalar) and node.is_lacking:
            return WRONG
        if isinstance(kind, Fields | Variants | Named | Settings):
            if not isinstance(node, Table):
                return self._wanted(node, path, f"a mapping of {_inside(kind)}")
            return self._mapping(kind, node, path)
        if isinstance(kind, Either):
            return self._either(kind, node, path)
        if isinstance(kind, Texts):
            return self._texts(kind, node, path)
        if not isinstance(node, Scalar) or node.is_null:
            return self._wanted(node, path, wanted(kind))
        return self._plain(kind, node, path)

    # ----------------------------------------------------------------------------- mappings

    def _mapping(self, kind: Fields | Variants | Named | Settings, table: Table, path: str) -> Any:
        if isinstance(kind, Fields):
            return self.fields(kind, table, path)
        if isinstance(kind, Variants):
            return self._variants(kind, table, path)
        if isinstance(kind, Settings):
            return self._settings(table, path)
        return self._named(kind, table, path)

    def fields(self, kind: Fields, table: Table, path: str, others: tuple[str, ...] = ()) -> Found:
        before = len(self._problems)
        found = Found(path, table.place)
        known = {key.name: key for key in kind}
        for name, node in table.entries:
            if name.text not in known:
                self._unknown(name, known, others, path)
                continue
            found.nodes[name.text] = node
            value = self.read(known[name.text].kind, node, _join(path, name.text))
            if value is not WRONG:
                found.values[name.text] = value
        for key in kind:
            self._belongs(key, known, found)
            if key.default is not None and key.name not in found.nodes:
                default = self._variables.fill(Scalar(key.default, table.place))
                value = self.read(key.kind, default, _join(path, key.name))
                if value is not WRONG:
                    found.values[key.name] = value
        found.is_whole = len(self._problems) == before
        return found

    def _belongs(self, key: Key, known: Mapping[str, Key], found: Found) -> None:
        """Required, needed beside another, or allowed only beside another."""
        here = f" in {found.path}" if found.path else ""
        if key.name not in found.nodes:
            if key.required:
                self.note(f"the key {key.name} is missing{here}; {_add(key)}", found.place)
            elif key.needed_when is not None and _holds(key.needed_when, known, found):
                beside = _worded(key.needed_when, known, found)
                self.note(f"{beside}{here} needs the key {key.name}; {_add(key)}", found.place)
        elif key.allowed_when is not None and _fails(key.allowed_when, known, found):
            where = _join(found.path, key.name)
            self.note(
                f"{where} goes only with {key.allowed_when}; remove it, or change "
                f"{key.allowed_when.key}",
                found.place_of(key.name),
            )

    def _variants(self, kind: Variants, table: Table, path: str) -> Any:
        names = [key.text for key, _ in table.entries]
        told = [name for name in names if name in kind.told_by()]
        if len(told) != 1:
            choices = _or(kind.told_by())
            if told:
                both = " and ".join(told)
                self.note(f"{path} has {both}; a {kind.words} has one of {choices}", table.place)
            else:
                near = next(filter(None, (nearest(name, kind.told_by()) for name in names)), "")
                self.note(f"{path} needs one of the keys {choices}{near}", table.place)
            return WRONG
        variant = next(one for one in kind.variants if told[0] in one.told_by)
        found = self.fields(variant.fields, table, path, _others(kind, variant))
        found.told_by = told[0]
        return found

    def _named(self, kind: Named, table: Table, path: str) -> Any:
        if not table.entries:
            return self._wanted(table, path, f"at least one {kind.words}")
        values: dict[str, Any] = {}
        for name, node in table.entries:
            if not re.fullmatch(kind.pattern, name.text):
                self.note(
                    f"{self._shown(name.text)!r} is no name for a {kind.words}; {kind.hint}",
                    name.place,
                )
                continue
            # What is missing in a mapping is told where its name stands.
            there = replace(node, place=name.place) if isinstance(node, Table) else node
            value = self.read(kind.item, there, _join(path, name.text))
            if value is not WRONG:
                values[name.text] = value
        return values

    def _settings(self, table: Table, path: str) -> Any:
        values: dict[str, str] = {}
        for name, node in table.entries:
            if isinstance(node, Scalar) and not node.is_null:
                values[name.text] = node.text
            else:
                self._wanted(node, _join(path, self._shown(name.text)), "text")
        return values

    def _unknown(
        self, name: Scalar, known: Mapping[str, Key], others: tuple[str, ...], path: str
    ) -> None:
        here = f" in {path}" if path else ""
        text = self._shown(name.text)
        renamed = [key.name for key in known.values() if key.formerly == name.text]
        if renamed:
            belongs = f"; it is called {renamed[0]} there"
        elif name.text in others:
            belongs = f"; {path} may have {', '.join(known)}"
        else:
            belongs = nearest(name.text, known) or f"; known are {', '.join(known)}"
        self.note(f"the key {text} is unknown{here}{belongs}", name.place)

    # ------------------------------------------------------------------------- single values

    def _either(self, kind: Either, node: Node, path: str) -> Any:
        if isinstance(node, Table):
            return self.read(kind.long, node, path)
        is_list = isinstance(node, Items) and isinstance(kind.short, Texts)
        if is_list or (isinstance(node, Scalar) and not node.is_null):
            return self.read(kind.short, node, path)
        return self._wanted(node, path, wanted(kind))

    def _texts(self, kind: Texts, node: Node, path: str) -> Any:
        if not isinstance(node, Items):
            value = self.read(kind.item, node, path)
            return WRONG if value is WRONG else (value,)
        values = [self.read(kind.item, each, path) for each in node.nodes]
        if len(values) < kind.least:
            return self._wanted(node, path, wanted(kind))
        return WRONG if WRONG in values else tuple(values)

    def _plain(self, kind: Kind, node: Scalar, path: str) -> Any:
        text = node.text.strip()
        value: Any = WRONG
        if isinstance(kind, Text):
            value = self._text(kind, node)
        elif isinstance(kind, Version):
            value = kind.number if text == str(kind.number) else WRONG
        elif isinstance(kind, Whole):
            if re.fullmatch("[0-9]{1,19}", text) and kind.least <= int(text) <= kind.most:
                value = int(text)
        elif isinstance(kind, Flag):
            value = {"true": True, "false": False}.get(text.lower(), WRONG)
        elif isinstance(kind, Choice):
            value = text if text in kind.values else WRONG
        elif isinstance(kind, Duration):
            value = text if re.fullmatch(DURATION, text) else WRONG
        elif isinstance(kind, Start):
            value = text if _is_start(text) else WRONG
        if value is WRONG:
            near = nearest(text, kind.values) if isinstance(kind, Choice) else ""
            return self._wanted(node, path, f"{wanted(kind)}{near}")
        return value

    def _text(self, kind: Text, node: Scalar) -> Any:
        if not node.text.strip():
            return node.text if kind.may_be_empty else WRONG
        if kind.is_sql:
            return node
        text = node.text if kind.may_be_empty else node.text.strip()
        if kind.pattern is None:
            return text
        return text if re.fullmatch(kind.pattern, text) else WRONG

    def _wanted(self, node: Node, path: str, words: str) -> _Wrong:
        if isinstance(node, Table):
            given = "is a mapping" if node.entries else "is empty"
        elif isinstance(node, Items):
            given = "is a list"
        elif node.is_null or not node.text.strip():
            given = "has no value"
        else:
            given = f"is {self._shown(node.text)!r}"
        self.note(f"{path} {given}; wanted: {words}", node.place)
        return WRONG

    def _shown(self, text: str) -> str:
        """First without secrets, then short: half a secret would not be recognised."""
        return shown(redact(text, self._variables.secrets))


def wanted(kind: Kind) -> str:
    """What a value of this kind is, for a person."""
    words: dict[type, str] = {
        Flag: "true or false",
        Duration: "a duration such as 10 seconds or 2 minutes",
        Start: "earliest, latest, or a time such as 2026-01-31T12:00:00Z",
    }
    if isinstance(kind, Text):
        example = f", for example {kind.example}" if kind.example else ""
        return f"{kind.words}{example}"
    if isinstance(kind, Whole):
        if kind.most == kind.least + 1:
            return f"{kind.least} or {kind.most}"
        return f"a whole number from {kind.least}"
    if isinstance(kind, Version):
        return f"{kind.number}"
    if isinstance(kind, Choice):
        return _or(kind.values)
    if isinstance(kind, Texts):
        return f"{wanted(kind.item)}, or a list of such"
    if isinstance(kind, Either):
        return f"{wanted(kind.short)}, or a mapping of {_inside(kind.long)}"
    return words.get(type(kind)) or f"a mapping of {_inside(kind)}"


def _inside(kind: Kind) -> str:
    if isinstance(kind, Fields):
        return f"the keys {', '.join(kind.names())}"
    if isinstance(kind, Variants):
        return f"keys, one of them {_or(kind.told_by())}"
    return f"{kind.words}s by name" if isinstance(kind, Named) else "names and values"


def _add(key: Key) -> str:
    example = key.kind.example if isinstance(key.kind, Text) else None
    if isinstance(key.kind, Version):
        example = str(key.kind.number)
    return f"add `{key.name}: {example}`" if example else f"add it: {wanted(key.kind)}"


def _is_start(text: str) -> bool:
    if text in ("earliest", "latest"):
        return True
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() >= 0
    except (ValueError, OverflowError):
        return False


def _holds(when: When, known: Mapping[str, Key], found: Found) -> bool:
    return _other(when, known, found) in when.values


def _fails(when: When, known: Mapping[str, Key], found: Found) -> bool:
    """Not the opposite of `_holds`: where the other value is wrong, neither is said."""
    other = _other(when, known, found)
    return other is not None and other not in when.values


def _other(when: When, known: Mapping[str, Key], found: Found) -> Any:
    if when.key in found.nodes:
        return found.values.get(when.key)
    return known[when.key].default


def _worded(when: When, known: Mapping[str, Key], found: Found) -> str:
    return f"{when.key}: {_other(when, known, found)}"


def _others(kind: Variants, variant: Variant) -> tuple[str, ...]:
    return tuple(name for one in kind.variants if one is not variant for name in one.fields.names())


def _or(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
