"""Which topics and partitions a read is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.spark.options.both_sides import check_topic
from ottla.spark.options.positions import parse_assignment
from ottla.spark.options.values import BadOption, raise_bad_option
from ottla.types import INTERNAL_TOPICS

# Java's names for sets of characters, as far as topic names go: these are ASCII.
_LOWER, _UPPER, _DIGIT = "a-z", "A-Z", "0-9"
_CLASSES: Final[Mapping[str, str]] = {
    "Lower": _LOWER, "Ll": _LOWER, "IsLowercase": _LOWER, "javaLowerCase": _LOWER,
    "Upper": _UPPER, "Lu": _UPPER, "IsUppercase": _UPPER, "javaUpperCase": _UPPER,
    "Alpha": _LOWER + _UPPER, "L": _LOWER + _UPPER, "IsAlphabetic": _LOWER + _UPPER,
    "Digit": _DIGIT, "N": _DIGIT, "Nd": _DIGIT, "IsDigit": _DIGIT,
    "Alnum": _LOWER + _UPPER + _DIGIT, "Punct": r"._\-", "P": r"._\-", "IsPunctuation": r"._\-",
    "XDigit": "0-9a-fA-F", "ASCII": r"\x00-\x7f", "Graph": r"\x21-\x7e", "Print": r"\x20-\x7e",
}  # fmt: skip
_PIECE: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|$)"
    r"|\\(?P<not>[pP])(?:\{(?P<name>\w+)\}|(?P<letter>[A-Z]))"
    r"|\\k<(?P<back>\w+)>|\(\?<(?P<group>[a-zA-Z]\w*)>|(?P<end>\\[zZ])"
    r"|(?P<other>\\.|&&|.)",
    re.DOTALL,
)


class _NotSupported(ValueError):
    pass


@dataclass(frozen=True)
class Topics:
    """All partitions of these topics, new ones too."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Pattern:
    """All topics whose name matches, those that appear later too; Kafka's internal ones never."""

    text: str

    def matches(self, topic: str) -> bool:
        # Spark's connector searches within the name, so a job that says "orders" also reads
        # "orders-eu"; a job that moves over must keep its topics.
        return topic not in INTERNAL_TOPICS and re.search(from_java(self.text), topic) is not None


@dataclass(frozen=True)
class Assigned:
    """These partitions and no others."""

    partitions: Mapping[str, tuple[int, ...]]


Subscription = Topics | Pattern | Assigned


def parse_subscription(options: Mapping[str, str]) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if name.lower() in options]
    if len(given) != 1:
        found = " and ".join(given) + " are given" if given else "none is given"
        hint = " (topic is for writing)" if not given and "topic" in options else ""
        raise BadOption(f"exactly one of {', '.join(names)} is wanted, {found}{hint}")
    name = given[0]
    text = options[name.lower()].strip()
    if name == "assign":
        assigned = parse_assignment(name, text)
        for topic in assigned:
            check_topic(name, topic)
        return Assigned(assigned)
    if name == "subscribePattern":
        _check_pattern(name, text)
        return Pattern(text)
    topics = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    if not topics:
        raise_bad_option(name, text, "one or more topics", "orders,payments")
    for topic in topics:
        check_topic(name, topic)
    return Topics(topics)


def _check_pattern(name: str, text: str) -> None:
    if not text:
        raise_bad_option(name, text, "a regular expression", "orders-.*")
    try:
        re.compile(from_java(text))
    except (_NotSupported, re.error, RecursionError, OverflowError) as wrong:
        raise_bad_option(
            name, text, f"a regular expression that can be read ({wrong})", "orders-.*"
        )


def from_java(text: str) -> str:
    """The same expression for Python's re; raises _NotSupported for what it does not have."""
    translated: list[str] = []
    in_class = False
    at_class_start = False
    for piece in _PIECE.finditer(text):
        other = piece["other"]
        if other is None:
            translated.append(_special(piece, in_class=in_class))
        elif in_class and other in ("[", "&&"):
            raise _NotSupported(f"{other} within [ ] is not supported")
        else:
            translated.append(other)
            if not in_class and other == "[":
                in_class, at_class_start = True, True
                continue
            # A ] right after [ or [^ is a character of the class.
            if in_class and other == "]" and not at_class_start:
                in_class = False
            if in_class and at_class_start and other == "^":
                continue
        at_class_start = False
    return "".join(translated)


def _special(piece: re.Match[str], *, in_class: bool) -> str:
    if piece["quoted"] is not None:
        return re.escape(piece["quoted"])
    if piece["not"] is not None:
        return _set_of(piece["name"] or piece["letter"], piece["not"] == "P", in_class=in_class)
    if piece["back"] is not None:
        return f"(?P={piece['back']})"
    if piece["group"] is not None:
        return "(?<" + piece["group"] + ">" if in_class else f"(?P<{piece['group']}>"
    return r"\Z"


def _set_of(name: str, negated: bool, *, in_class: bool) -> str:
    characters = _CLASSES.get(name)
    if characters is None or (negated and in_class):
        raise _NotSupported(f"\\{'P' if negated else 'p'}{{{name}}} is not supported here")
    if in_class:
        return characters
    return f"[{'^' if negated else ''}{characters}]"
