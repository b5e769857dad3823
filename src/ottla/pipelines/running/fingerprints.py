"""The parts of a flow that its checkpoint cannot follow when they change.

Spark continues a query from its checkpoint whatever the query has become, as long as nothing
breaks; offsets are then taken for those of another topic, or state for that of another window.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.running.plan_shapes import shape_of
from ottla.pipelines.sinks.kinds import sink_kind
from ottla.pipelines.sources.kinds import identity as source_identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.pipelines.views.graph import Flow

Document: TypeAlias = dict[str, Any]

# What of a document is not simply a word of its line.
_APART: Final = ("kind", "name", "key", "sequence_by")


@dataclass(frozen=True)
class Difference:
    """One thing that a checkpoint cannot follow."""

    what: str
    old: str
    new: str


def described(flow: Flow, pipeline: Pipeline) -> Document:
    """What of a flow may not change while its checkpoint lives."""
    shape = shape_of(explained(flow.frame), pipeline.views, flow.sink.name)
    by_name = {source.name: source for source in flow.sources}
    named = [by_name[name] for name in shape.streams if name in by_name]
    return {
        "sources": [{"name": one.name, **source_identity(one)} for one in named or flow.sources],
        "sink": sink_kind(flow.sink).identity(flow.sink, pipeline.secrets),
        "mode": flow.sink.mode,
        "stateful": [{"where": one.where, "what": one.what} for one in shape.stateful],
    }


def explained(frame: DataFrame) -> str:
    """The plans as Spark prints them, whole: without this setting it leaves columns out."""
    setting = "spark.sql.debug.maxToStringFields"
    session = frame.sparkSession
    before = session.conf.get(setting, None)
    session.conf.set(setting, "100000")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            frame.explain(extended=True)
    finally:
        if before is None:
            session.conf.unset(setting)
        else:
            session.conf.set(setting, before)
    return printed.getvalue()


def differences(old: Document, new: Document, *, same_spark: bool) -> list[Difference]:
    """Another version of Spark prints other plans; then state is left to Spark's own checks."""
    found = _source_differences(old["sources"], new["sources"])
    if old["sink"] != new["sink"]:
        found.append(Difference("the sink", _words(old["sink"]), _words(new["sink"])))
    if old["mode"] != new["mode"]:
        found.append(Difference("mode", old["mode"], new["mode"]))
    if same_spark:
        found += _state_differences(old["stateful"], new["stateful"])
    return found


def _source_differences(old: list[Document], new: list[Document]) -> list[Difference]:
    before = {one["name"]: one for one in old}
    after = {one["name"]: one for one in new}
    # A source may be called differently: what is read counts.
    if [_without_name(one) for one in old] == [_without_name(one) for one in new]:
        return []
    found = [
        Difference(f"source {name}", _words(one), _words(after[name]))
        for name, one in before.items()
        if name in after and after[name] != one
    ]
    if found:
        return found
    names = [", ".join(one["name"] for one in side) or "none" for side in (old, new)]
    what = "the order of its sources" if before.keys() == after.keys() else "its sources"
    return [Difference(what, names[0], names[1])]


def _state_differences(old: list[Document], new: list[Document]) -> list[Difference]:
    before, after = [one["what"] for one in old], [one["what"] for one in new]
    if before == after:
        return []
    if len(before) == len(after):
        return [
            Difference(f"what is kept as state in {there['where']}", one["what"], there["what"])
            for one, there in zip(old, new, strict=True)
            if one["what"] != there["what"]
        ]
    gone = [one for one in old if one["what"] not in after]
    come = [one for one in new if one["what"] not in before]
    where = (come or gone or new or old)[0]["where"]
    texts = ["; ".join(one["what"] for one in side) or "nothing" for side in (gone, come)]
    return [Difference(f"what is kept as state in {where}", texts[0], texts[1])]


def _without_name(source: Document) -> Document:
    return {key: value for key, value in source.items() if key != "name"}


def _words(document: Document) -> str:
    """`topic orders`, `files out/ (parquet)`: a kind and what names it."""
    rest = [value for key, value in document.items() if key not in _APART]
    texts = [", ".join(one) if isinstance(one, list) else str(one) for one in rest if one]
    key = f" by {', '.join(document['key'])}" if document.get("key") else ""
    if document.get("sequence_by"):
        key += f", in the sequence of {document['sequence_by']}"
    return f"{document['kind']} {' '.join(texts)}".strip() + key
