"""The table of keys is whole: every key is explained, and what it names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from pathlib import Path

import pytest

from ottla.pipelines.language import model
from ottla.pipelines.language.keys import (
    PIPELINE,
    SINKS,
    SOURCES,
    Choice,
    Either,
    Fields,
    Key,
    Kind,
    Named,
    Variants,
)
from ottla.pipelines.language.reference import render_pipeline

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "pipeline.md"


def tables(kind: Kind) -> Iterator[Fields]:
    if isinstance(kind, Fields):
        yield kind
        for key in kind:
            yield from tables(key.kind)
    elif isinstance(kind, Variants):
        for variant in kind.variants:
            yield from tables(variant.fields)
    elif isinstance(kind, Either):
        yield from tables(kind.long)
    elif isinstance(kind, Named):
        yield from tables(kind.item)


TABLES = list(tables(PIPELINE))
KEYS = [(table, key) for table in TABLES for key in table]
# In an order that is the same in every process.
EACH_KEY = list(dict.fromkeys(key for _, key in KEYS))


def test_no_key_is_there_twice() -> None:
    assert all(len(set(table.names())) == len(table.names()) for table in TABLES)


@pytest.mark.parametrize("key", EACH_KEY, ids=lambda key: key.name)
def test_every_key_is_explained_in_a_sentence(key: Key) -> None:
    assert re.fullmatch(r"[A-Z`].*[.…]", key.doc, re.DOTALL)
    assert not (key.required and key.default)


def test_conditions_name_keys_and_values_that_exist() -> None:
    for table, key in KEYS:
        for when in filter(None, (key.needed_when, key.allowed_when)):
            other = next(one for one in table if one.name == when.key)
            assert isinstance(other.kind, Choice)
            assert set(when.values) <= set(other.kind.values)


@pytest.mark.parametrize(("kind", "base"), [(SOURCES, model.Source), (SINKS, model.Sink)])
def test_every_kind_is_in_the_model(kind: Variants, base: type) -> None:
    assert len(kind.variants) == len(list(_leaves(base)))


def _leaves(base: type) -> Iterator[type]:
    for one in base.__subclasses__():
        yield from _leaves(one) if one.__subclasses__() else [one]


def test_choices_are_those_of_the_model() -> None:
    """The defaults of the model and of the file are the same."""
    source = next(one for one in SOURCES.variants if one.title == "topic").fields
    defaults = {key.name: key.default for key in source}
    for field in dataclass_fields(model.TopicSource):
        if field.name in ("start", "format"):
            assert field.default == defaults[field.name]


def test_the_reference_is_what_the_table_says() -> None:
    assert PAGE.read_text().endswith(render_pipeline()), "run `make docs`"
    for _, key in KEYS:
        assert re.search(rf"^\| `([a-z_]+\.)?{key.name}` \|", PAGE.read_text(), re.MULTILINE)
