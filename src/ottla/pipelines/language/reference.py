"""docs/reference/pipeline.md: every key of a pipeline file, drawn from the table of keys."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.pipelines.language.checker import wanted
from ottla.pipelines.language.keys import (
    PIPELINE,
    SINKS,
    SOURCES,
    TESTS,
    VIEWS,
    Duration,
    Either,
    Fields,
    Key,
    Kind,
    Named,
    Settings,
    Text,
    Texts,
    Variants,
)

_INTRODUCTION = """\
# The pipeline file

Every key, with what its value is. `ottla pipeline validate` checks a file against this table and
says what is wrong with line and column; editors do the same while you type, with the JSON Schema
that `ottla pipeline schema` prints. Begin the file with

```yaml
# yaml-language-server: $schema=pipeline.schema.json
```

Values may hold variables of the environment: `${NAME}` must be set, `${NAME:-default}` need not be,
`$${` stands for `${` itself. They are filled in after the YAML is read, so a value cannot become
keys. Paths are relative to the file's directory. Durations are words: `10 seconds`, `2 minutes`.
What belongs to a key or a variable with a name like password, secret, token, credential or jaas is
never printed. `--set sources.orders.start=latest` puts another value in for one run."""


def render_pipeline() -> str:
    parts = [_INTRODUCTION, "## The file", _table(PIPELINE, "")]
    parts += ["## sources", *_variants(SOURCES)]
    parts += [
        "Beside the columns of its value a topic has `_key`, `_topic`, `_partition`, `_offset`, "
        "`_timestamp`, `_tombstone` (whether the value is null), and `_headers` when asked for.",
    ]
    assert isinstance(VIEWS.long, Variants)
    parts += ["## views", "A SELECT, or a mapping with one of:", *_variants(VIEWS.long)]
    parts += ["## sinks", *_variants(SINKS)]
    parts += ["## tests", _table(TESTS, "")]
    return "\n\n".join(parts) + "\n"


def _variants(kind: Variants) -> Iterator[str]:
    for variant in kind.variants:
        names = ", ".join(f"`{name}`" for name in variant.told_by)
        yield f"### A {kind.words} with {names}"
        yield _table(variant.fields, "", variant.told_by)


def _table(fields: Fields, prefix: str, told_by: tuple[str, ...] = ()) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    rows += _rows(fields, prefix, told_by)
    return "\n".join(rows)


def _rows(fields: Fields, prefix: str, told_by: tuple[str, ...] = ()) -> Iterator[str]:
    for key in fields:
        name = f"`{prefix}{key.name}`"
        cells = (name, _value(key.kind), _default(key, told_by), key.doc + _beside(key))
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
        below = key.kind.long if isinstance(key.kind, Either) else key.kind
        if isinstance(below, Fields):
            yield from _rows(below, f"{prefix}{key.name}.")


def _value(kind: Kind) -> str:
    if isinstance(kind, Fields):
        return "a mapping"
    if isinstance(kind, Named):
        return f"{kind.words}s by name"
    if isinstance(kind, Settings):
        return "names and values"
    if isinstance(kind, Either):
        return f"{_value(kind.short)}, or a mapping"
    if isinstance(kind, Text):
        return kind.words
    if isinstance(kind, Texts):
        return f"{_value(kind.item)}, or a list of such"
    return "a duration" if isinstance(kind, Duration) else wanted(kind)


def _default(key: Key, told_by: tuple[str, ...]) -> str:
    if key.required or told_by == (key.name,):
        return "required"
    return f"`{key.default}`" if key.default is not None else ""


def _beside(key: Key) -> str:
    if key.needed_when is not None and key.needed_when == key.allowed_when:
        return f" Needed with `{key.needed_when}`, and only there."
    words = f" Needed with `{key.needed_when}`." if key.needed_when is not None else ""
    return words + (f" Only with `{key.allowed_when}`." if key.allowed_when is not None else "")
