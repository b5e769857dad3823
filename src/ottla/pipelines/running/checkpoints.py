"""The directory of a pipeline's checkpoints: whose it is, and who is at work in it.

`pipeline.json` in it says what the flows' own checkpoints belong to (`fingerprints.py`). It is
written before the first query starts; a run whose flows have changed in a way that a checkpoint
cannot follow ends the run before anything is read.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.language.problems import BadPipeline, Problem
from ottla.pipelines.running.fingerprints import Difference, Document, described, differences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipelines.views.graph import Flow

VERSION: Final = 1
NAME: Final = "pipeline.json"
LOCK: Final = ".lock"
TEMPORARY: Final = ".pipeline.json.new"
# Spark's logs of a query: batches that were begun, with where each ends; those that are done.
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
# Of a Remote: where the document may be, and how often it was written.
PLACES: Final = (NAME, f"{NAME}.other")
NUMBER: Final = "number"
OWN_FILES: Final = frozenset({NAME, LOCK, TEMPORARY})


class Store(Protocol):
    """Where the checkpoints are: on this machine, or wherever Spark's file systems reach."""

    def read(self) -> str | None: ...
    def write(self, text: str) -> None: ...
    def has_flow(self, flow: str) -> bool: ...
    def batches(self, flow: str, log: str) -> Mapping[int, str]: ...
    def strangers(self) -> Sequence[str]: ...


@contextmanager
def held(spark: SparkSession, location: str) -> Iterator[Store]:
    """Raises BadPipeline for a second run, where the checkpoints are files of this machine."""
    path = local_path(location)
    if path is None:
        yield Remote(spark, location)
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _bad_checkpoint(f"{location}: {error.strerror}; give another --checkpoint") from None
    try:
        _lock(lock, location)
        yield Local(path)
    finally:
        os.close(lock)


def known(store: Store, location: str, pipeline: Pipeline) -> Document | None:
    """What earlier runs have noted down; None: this is the first."""
    old = _read(store, location)
    if old is not None:
        _check_name(old, pipeline, location)
    return old


def check(
    store: Store,
    location: str,
    pipeline: Pipeline,
    flows: Sequence[Flow],
    spark_version: str,
    old: Document | None,
) -> Document:
    """Refuses a checkpoint that is not of these flows, else says what is to be noted of them."""
    new = {flow.name: described(flow, pipeline) for flow in flows}
    if old is not None:
        same_spark = old.get("spark") == _minor(spark_version)
        before: Mapping[str, Document] = old["flows"]
        problems = [
            problem
            for flow in flows
            if flow.name in before and store.has_flow(flow.name)
            for one in differences(before[flow.name], new[flow.name], same_spark=same_spark)
            for problem in [_problem(flow, one, location)]
        ]
        if problems:
            raise BadPipeline(problems)
    # A sink that is taken out may come back: what its checkpoint belongs to stays on record.
    kept = {} if old is None else {n: d for n, d in old["flows"].items() if n not in new}
    return {
        "version": VERSION,
        "pipeline": pipeline.name,
        "spark": _minor(spark_version),
        "flows": {**{n: d for n, d in kept.items() if store.has_flow(n)}, **new},
    }


def note(store: Store, document: Document, old: Document | None) -> None:
    """Whole or not at all; before the first query starts."""
    if document != old:
        store.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def flow_location(location: str, flow: str) -> str:
    return f"{location.rstrip('/')}/{flow}"


def advice(location: str, flow: str) -> str:
    """What to do when a flow has changed too much."""
    return (
        f"undo it, or give another --checkpoint, or delete {flow_location(location, flow)} (then "
        "this flow reads again from `start`, and what it has written already is written again)"
    )


def local_path(location: str) -> Path | None:
    """None when it is on another file system than this machine's."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    # One letter is a drive.
    return None if len(parts.scheme) > 1 and "://" in location else Path(location)


class Local:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str | None:
        try:
            return (self._path / NAME).read_text()
        except FileNotFoundError:
            return None

    def write(self, text: str) -> None:
        """Whole or not at all, also after a crash."""
        temporary = self._path / TEMPORARY
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path / NAME)
        directory = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def has_flow(self, flow: str) -> bool:
        # Without a batch there is nothing yet that a change could contradict.
        return any((self._path / flow / OFFSETS).glob("[0-9]*"))

    def batches(self, flow: str, log: str) -> Mapping[int, str]:
        found = (self._path / flow / log).glob("[0-9]*")
        return {int(one.name): one.read_text() for one in found if one.name.isdigit()}

    def strangers(self) -> Sequence[str]:
        return sorted(one.name for one in self._path.iterdir() if one.name not in OWN_FILES)


class Remote:
    """Through Spark's own reader and writer of text, so that every file system of Spark's will do.

    There `pipeline.json` is a directory with one file in it. Nothing is locked. To overwrite one
    is to delete it first, so there are two, of which the one with the greater number counts.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = location.rstrip("/")

    def read(self) -> str | None:
        _, text = self._newest()
        return text

    def write(self, text: str) -> None:
        number, _ = self._newest()
        numbered = json.dumps({**json.loads(text), NUMBER: number + 1})
        frame = self._spark.createDataFrame([(numbered,)], "value string")
        name = PLACES[(number + 1) % len(PLACES)]
        frame.coalesce(1).write.mode("overwrite").text(f"{self._location}/{name}")

    def _newest(self) -> tuple[int, str | None]:
        """What was written last, and how many were written before."""
        found: tuple[int, str | None] = (0, None)
        for text in (text for name in PLACES for text in self._text(name)):
            try:
                document = json.loads(text)
                number = document.pop(NUMBER, 0)
            except (ValueError, AttributeError):
                # Whoever reads it says so.
                return 0, text
            if found[1] is None or number > found[0]:
                found = number, json.dumps(document)
        return found

    def has_flow(self, flow: str) -> bool:
        return bool(self._text(f"{flow}/metadata"))

    def batches(self, flow: str, log: str) -> Mapping[int, str]:
        texts = self._named_texts(f"{flow}/{log}")
        return {int(name): text for name, text in texts if name.isdigit()}

    def strangers(self) -> Sequence[str]:
        # There is no listing through Spark's readers.
        return ()

    def _text(self, name: str) -> list[str]:
        return [text for _, text in self._named_texts(name)]

    def _named_texts(self, name: str) -> list[tuple[str, str]]:
        from pyspark.errors import AnalysisException

        try:
            frame = self._spark.read.text(f"{self._location}/{name}", wholetext=True)
            rows = frame.selectExpr("_metadata.file_name AS name", "value").collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return []
            raise
        return [(row.name, row.value) for row in rows]


def _lock(lock: int, location: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(lock, 32, 0).decode(errors="replace").strip()
        process = f" (process {who})" if who.isdigit() else ""
        raise _bad_checkpoint(
            f"{location}: another run{process} is at work with this checkpoint; stop it, or give "
            "another --checkpoint"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _read(store: Store, location: str) -> Document | None:
    text = store.read()
    if text is None:
        strangers = store.strangers()
        if strangers:
            raise _bad_checkpoint(
                f"{location} is not a pipeline's checkpoint: it holds {', '.join(strangers[:3])} "
                f"and no {NAME}; give an empty directory as --checkpoint"
            )
        return None
    try:
        document = json.loads(text)
        version = document["version"]
        if version == VERSION and document["flows"].keys() >= set():
            return dict(document)
    except (ValueError, TypeError, KeyError, AttributeError):
        version = None
    if version is not None:
        raise _bad_checkpoint(
            f"{location}/{NAME} has version {version}, this Ottla knows version {VERSION}; "
            "install the Ottla that wrote it, or give another --checkpoint"
        )
    raise _bad_checkpoint(
        f"{location}/{NAME} cannot be read; put it back as it was, or give another --checkpoint"
    )


def _check_name(old: Mapping[str, Any], pipeline: Pipeline, location: str) -> None:
    if old["pipeline"] != pipeline.name:
        raise _bad_checkpoint(
            f"{location} is the checkpoint of the pipeline {old['pipeline']}, not of "
            f"{pipeline.name}; give another --checkpoint, or the pipeline its old name"
        )


def _problem(flow: Flow, one: Difference, location: str) -> Problem:
    return Problem(
        f"the checkpoint of flow {flow.name} cannot follow a change of {one.what}: "
        f"{one.old} → {one.new}; {advice(location, flow.name)}",
        flow.sink.place,
    )


def _bad_checkpoint(text: str) -> BadPipeline:
    return BadPipeline([Problem(text)])


def _minor(version: str) -> str:
    """`4.3`: plans are printed alike within it."""
    return ".".join(version.split(".")[:2])
