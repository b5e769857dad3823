"""What was found in the file becomes the model; rules that reach over several keys are here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ottla.pipelines.language.checker import Checker, Found, seconds
from ottla.pipelines.language.document import Scalar, read_text, shown
from ottla.pipelines.language.keys import BAD_SUFFIX
from ottla.pipelines.language.model import (
    BadRecords,
    Case,
    CurrentTableSink,
    DeltaSink,
    DeltaSource,
    FileSink,
    FileSource,
    JdbcSink,
    JdbcSource,
    Pipeline,
    PythonFunction,
    RateSource,
    Restarts,
    Sink,
    Source,
    Sql,
    TopicSink,
    TopicSource,
    View,
    Watermark,
)
from ottla.pipelines.language.option_rules import check_kafka, check_options, check_spark
from ottla.pipelines.language.problems import BadPipeline, Place
from ottla.pipelines.language.schema_rules import check_schemas
from ottla.pipelines.language.variables import Variables
from ottla.spark.spelling import nearest

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def build(found: Found, file: Path, checker: Checker, variables: Variables) -> Pipeline | None:
    """The pipeline, or None after problems were noted."""
    builder = _Builder(found, file, checker)
    builder.check()
    if variables.problems:
        return None
    return builder.pipeline(frozenset(variables.secrets))


class _Builder:
    def __init__(self, found: Found, file: Path, checker: Checker) -> None:
        self._found = found
        self._file = file
        self._directory = os.path.dirname(os.path.abspath(file))
        self._checker = checker

    def _named(self, key: str) -> Mapping[str, Any]:
        return self._found[key] or {}

    # --------------------------------------------------------------------------------- rules

    def check(self) -> None:
        self._check_names()
        for sink in self._named("sinks").values():
            place = sink.place_of("from")
            self._check_known(f"{sink.path}.from", sink["from"], place, "sources", "views")
            check_options(self._checker, sink, is_source=False)
        for source in self._named("sources").values():
            check_options(self._checker, source, is_source=True)
            self._check_dead_letters(source)
        check_schemas(
            self._checker, [*self._named("sources").values(), *self._named("sinks").values()]
        )
        self._check_tests()
        check_kafka(self._checker, self._found)
        check_spark(self._checker, self._found)
        self._views = {
            name: self._view(name, value) for name, value in self._named("views").items()
        }

    def _check_names(self) -> None:
        """Sources and views are tables to SQL, which does not tell large letters from small."""
        for keys in (("sources", "views"), ("sinks",)):
            seen: dict[str, str] = {}
            for key in keys:
                for name in self._names_in(key):
                    other = seen.setdefault(name.text.lower(), f"{key}.{name.text}")
                    if other != f"{key}.{name.text}":
                        self._checker.note(
                            f"{key}.{name.text} has the name of {other}; rename one of them",
                            name.place,
                        )

    def _names_in(self, key: str) -> Iterable[Scalar]:
        node = self._found.nodes.get(key)
        entries = getattr(node, "entries", ())
        return [name for name, _ in entries]

    def _names_of(self, *keys: str) -> list[str]:
        return [name.text for key in keys for name in self._names_in(key)]

    def _check_known(self, what: str, name: str | None, place: Place, *keys: str) -> None:
        known = self._names_of(*keys)
        if name is not None and name.lower() not in map(str.lower, known):
            near = nearest(name, known) or f"; there are {', '.join(known) or 'none'}"
            kinds = " and ".join(f"no {key.removesuffix('s')}" for key in keys)
            self._checker.note(f"{what}: {shown(name)} is {kinds}{near}", place)

    def _proper(self, name: str) -> str:
        """The name as its source or view spells it; SQL does not mind, dictionaries do."""
        bare = name.removesuffix(BAD_SUFFIX)
        known = self._names_of("sources", "views")
        proper = next((one for one in known if one.lower() == bare.lower()), bare)
        return proper + name[len(bare) :]

    def _check_dead_letters(self, source: Found) -> None:
        bad = source["bad_records"]
        if isinstance(bad, Found) and bad["topic"] in _topics(source):
            self._checker.note(
                f"{bad.path}.topic is the topic that is read, so its bad records would come back "
                "for ever; choose another",
                bad.place_of("topic"),
            )

    def _check_tests(self) -> None:
        for name, case in self._named("tests").items():
            what, place = f"tests.{name}.given", case.place_of("given")
            for given in case["given"] or {}:
                self._check_known(what, given, place, "sources")
            what, place = f"tests.{name}.expect", case.place_of("expect")
            for expected in case["expect"] or {}:
                source = expected.removesuffix(BAD_SUFFIX)
                kinds = ("sources",) if source != expected else ("sources", "views")
                self._check_known(what, source, place, *kinds)

    # --------------------------------------------------------------------------------- model

    def pipeline(self, secrets: frozenset[str]) -> Pipeline:
        found = self._found
        return Pipeline(
            name=found["name"],
            file=self._file,
            bootstrap=found["bootstrap"],
            sources={name: self._source(name, at) for name, at in self._named("sources").items()},
            views={name: view for name, view in self._views.items() if view is not None},
            sinks={name: self._sink(name, at) for name, at in self._named("sinks").items()},
            tests={name: self._case(name, at) for name, at in self._named("tests").items()},
            kafka=found["kafka"] or {},
            spark=found["spark"] or {},
            trigger=found["trigger"],
            restarts=_restarts(found["restarts"]),
            secrets=secrets,
        )

    def _source(self, name: str, found: Found) -> Source:
        common = {
            "name": name,
            "place": found.place,
            "watermark": _watermark(found),
            "deduplicate": found["deduplicate"] or (),
            "schema": found["schema"],
            "bad_records": _bad_records(found["bad_records"]),
            "options": found["options"] or {},
        }
        return _SOURCES[found.told_by](found, common, self._path)

    def _sink(self, name: str, found: Found) -> Sink:
        common = {
            "name": name,
            "place": found.place,
            "input": self._proper(found["from"]),
            "mode": found["mode"],
            "options": found["options"] or {},
        }
        return _SINKS[found.told_by](found, common, self._path)

    def _view(self, name: str, value: Any) -> View | None:
        """Short: the SQL itself; long: a mapping. A file that is not there is a problem."""
        if not isinstance(value, Found):
            place = next(each.place for each in self._names_in("views") if each.text == name)
            return View(name=name, place=place, body=sql_of(value))
        body: Sql | PythonFunction | None
        node = value.nodes[value.told_by]
        if value[value.told_by] is None or not isinstance(node, Scalar):
            return None
        if value.told_by == "sql":
            body = sql_of(node)
        elif value.told_by == "file":
            body = self._sql_file(value["file"], node.place)
        else:
            module, _, function = value["python"].partition(":")
            body = PythonFunction(module, function, node.place)
        if body is None or not value.is_whole:
            return None
        return View(
            name=name,
            place=value.place,
            body=body,
            watermark=_watermark(value),
            deduplicate=value["deduplicate"] or (),
        )

    def _sql_file(self, path: str, place: Place) -> Sql | None:
        file = self._file.parent / path
        try:
            text = read_text(file, "SQL file")
        except BadPipeline as bad:
            for problem in bad.problems:
                self._checker.note(problem.text, problem.place or place)
            return None
        if not text.strip():
            self._checker.note(f"{file} is empty; write a SELECT into it", place)
            return None
        return Sql(text, Place(file, 1, 1))

    def _case(self, name: str, found: Found) -> Case:
        return Case(
            name,
            found.place,
            {
                self._proper(source): tuple(Path(self._path(file)) for file in files)
                for source, files in found["given"].items()
            },
            {self._proper(view): Path(self._path(file)) for view, file in found["expect"].items()},
        )

    def _path(self, path: str) -> str:
        """Relative to the file, not to where the command was typed; addresses as they are."""
        if _SCHEME.match(path):
            return path
        return os.path.normpath(os.path.join(self._directory, path))


Path_ = Callable[[str], str]


def _topic_source(found: Found, common: Mapping[str, Any], _: Path_) -> Source:
    key = found["key"]
    schema_ids, writer_schemas = _schema_ids(found)
    key_schema_ids, key_writer_schemas = _schema_ids(key) if key else ((), ())
    return TopicSource(
        **common,
        topics=_topics(found),
        start=found["start"],
        format=found["format"],
        key_format=key["format"] if key else "string",
        key_schema=key["schema"] if key else None,
        schema_ids=schema_ids,
        key_schema_ids=key_schema_ids,
        writer_schemas=writer_schemas,
        key_writer_schemas=key_writer_schemas,
        headers=found["headers"],
        max_rows_per_batch=found["max_rows_per_batch"],
    )


def _schema_ids(found: Found) -> tuple[tuple[int, ...], tuple[str, ...]]:
    given = found["schema_ids"] or ()
    if isinstance(given, dict):
        return tuple(map(int, given)), tuple(given.values())
    return given, ()


def _file_source(found: Found, common: Mapping[str, Any], path: Path_) -> Source:
    return FileSource(
        **common,
        path=path(found["files"]),
        format=found["format"],
        read=found["read"],
        max_files_per_batch=found["max_files_per_batch"],
    )


def _jdbc_source(found: Found, common: Mapping[str, Any], _: Path_) -> Source:
    return JdbcSource(
        **common,
        url=found["jdbc"],
        table=found["table"],
        user=found["user"],
        password=found["password"],
    )


def _delta_source(found: Found, common: Mapping[str, Any], path: Path_) -> Source:
    return DeltaSource(**common, path=path(found["delta"]), read=found["read"])


def _rate_source(found: Found, common: Mapping[str, Any], _: Path_) -> Source:
    return RateSource(**common, rows_per_second=found["rate"])


def _topic_sink(found: Found, common: Mapping[str, Any], _: Path_) -> Sink:
    return TopicSink(
        **common,
        topic=found["topic"],
        key=found["key"] or (),
        format=found["format"],
        schema=found["schema"],
        headers=found["headers"],
    )


def _file_sink(found: Found, common: Mapping[str, Any], path: Path_) -> Sink:
    return FileSink(
        **common,
        path=path(found["files"]),
        format=found["format"],
        partition_by=found["partition_by"] or (),
    )


def _current_table_sink(found: Found, common: Mapping[str, Any], path: Path_) -> Sink:
    return CurrentTableSink(**common, **_upserts(found), path=path(found["current_table"]))


def _jdbc_sink(found: Found, common: Mapping[str, Any], _: Path_) -> Sink:
    return JdbcSink(
        **common,
        **_upserts(found),
        url=found["jdbc"],
        table=found["table"],
        user=found["user"],
        password=found["password"],
    )


def _delta_sink(found: Found, common: Mapping[str, Any], path: Path_) -> Sink:
    return DeltaSink(
        **common,
        **_upserts(found),
        path=path(found["delta"]),
        partition_by=found["partition_by"] or (),
    )


def _upserts(found: Found) -> dict[str, Any]:
    return {
        "keys": found["keys"] or (),
        "sequence_by": found["sequence_by"],
        "apply_as_deletes": found["apply_as_deletes"],
        "tombstone_life_s": seconds(found["tombstone_life"]),
        "stored_as_scd_type": found["stored_as_scd_type"] or 1,
    }


_SOURCES: Final[Mapping[str, Callable[[Found, Mapping[str, Any], Path_], Source]]] = {
    "topic": _topic_source,
    "topics": _topic_source,
    "files": _file_source,
    "jdbc": _jdbc_source,
    "delta": _delta_source,
    "rate": _rate_source,
}
_SINKS: Final[Mapping[str, Callable[[Found, Mapping[str, Any], Path_], Sink]]] = {
    "topic": _topic_sink,
    "files": _file_sink,
    "current_table": _current_table_sink,
    "jdbc": _jdbc_sink,
    "delta": _delta_sink,
}


def _topics(source: Found) -> tuple[str, ...]:
    topics: tuple[str, ...] = source["topics"] or ()
    return (source["topic"],) if source["topic"] else topics


def _watermark(found: Found) -> Watermark | None:
    given = found["watermark"]
    return Watermark(given["column"], given["delay"]) if given else None


def _bad_records(given: Any) -> BadRecords:
    if isinstance(given, Found):
        return BadRecords("dead_letter", given["topic"])
    return BadRecords(given or "fail")


def _restarts(given: Found | None) -> Restarts:
    if given is None:
        return Restarts()
    return Restarts(given["max"], seconds(given["backoff"]), seconds(given["max_backoff"]))


def sql_of(scalar: Scalar) -> Sql:
    """The SQL with a way back to the file; simply indented where that says it all."""
    pieces = scalar.pieces
    if not pieces:
        return Sql(scalar.text, scalar.place)
    first = pieces[0]
    line, column = _line_and_column(scalar.text, first.offset)
    indent = first.place.column - column
    begin = Place(first.place.file, first.place.line - line + 1, max(indent, 0) + 1)
    if line == 1:
        begin = Place(begin.file, begin.line, first.place.column - column + 1)
    simple = Sql(scalar.text, begin, indent)
    is_simple = indent >= 0 and all(
        simple.at(*_line_and_column(scalar.text, piece.offset)) == piece.place for piece in pieces
    )
    return simple if is_simple else Sql(scalar.text, first.place, 0, pieces)


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
