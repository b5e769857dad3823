"""Whose a checkpoint is, and what it can follow; flows without Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from ottla.pipelines.language.problems import BadPipeline
from ottla.pipelines.running import checkpoints
from ottla.pipelines.running.fingerprints import Difference, Document, differences

NOBODY = cast(Any, None)


def flow(**changed: Any) -> Document:
    return {
        "sources": [
            {"name": "orders", "kind": "topic", "topics": ["orders"]},
            {"name": "payments", "kind": "topic", "topics": ["payments"]},
        ],
        "sink": {"kind": "files", "path": "/out", "format": "parquet"},
        "mode": "append",
        "stateful": [{"where": "totals", "what": "GROUP BY shop: sum(amount)"}],
        **changed,
    }


def changed(**what: Any) -> list[tuple[str, str, str]]:
    found = differences(flow(), flow(**what), same_spark=True)
    return [(one.what, one.old, one.new) for one in found]


def test_same_flow_has_no_differences() -> None:
    assert changed() == []


def test_other_topic_of_a_source() -> None:
    sources = flow()["sources"]
    sources[0] = {"name": "orders", "kind": "topic", "topics": ["orders.v2", "orders"]}
    assert changed(sources=sources) == [
        ("source orders", "topic orders", "topic orders.v2, orders")
    ]


def test_other_kind_of_a_source() -> None:
    sources = flow()["sources"]
    sources[1] = {"name": "payments", "kind": "files", "path": "/in"}
    assert changed(sources=sources) == [("source payments", "topic payments", "files /in")]


def test_source_more_or_less() -> None:
    assert changed(sources=flow()["sources"][:1]) == [("its sources", "orders, payments", "orders")]


def test_order_of_sources() -> None:
    assert changed(sources=flow()["sources"][::-1]) == [
        ("the order of its sources", "orders, payments", "payments, orders")
    ]


def test_name_of_a_source_may_change() -> None:
    sources = flow()["sources"]
    sources[0] = {**sources[0], "name": "bestellungen"}
    assert changed(sources=sources) == []


def test_sink_and_mode() -> None:
    sink = {"kind": "current_table", "path": "/table", "key": ["id", "day"]}
    assert changed(sink=sink, mode="upsert") == [
        ("the sink", "files /out parquet", "current_table /table by id, day"),
        ("mode", "append", "upsert"),
    ]


def test_what_tells_the_newer_row() -> None:
    sink = {"kind": "delta", "path": "/table", "key": ["id"]}
    (found,) = differences(
        {**flow(), "sink": sink}, {**flow(), "sink": {**sink, "sequence_by": "at"}}, same_spark=True
    )
    assert (found.old, found.new) == (
        "delta /table by id", "delta /table by id, in the sequence of at"
    )  # fmt: skip


def test_state() -> None:
    other = [{"where": "totals", "what": "GROUP BY shop, day: sum(amount)"}]
    assert changed(stateful=other) == [
        (
            "what is kept as state in totals",
            "GROUP BY shop: sum(amount)",
            "GROUP BY shop, day: sum(amount)",
        )
    ]
    assert changed(stateful=[]) == [
        ("what is kept as state in totals", "GROUP BY shop: sum(amount)", "nothing")
    ]
    more = [{"where": "seen", "what": "Deduplicate [id]"}, *flow()["stateful"]]
    assert changed(stateful=more) == [
        ("what is kept as state in seen", "nothing", "Deduplicate [id]")
    ]


def test_view_that_state_stands_in_may_be_called_differently() -> None:
    assert changed(stateful=[{**flow()["stateful"][0], "where": "sums"}]) == []


def test_other_version_of_spark_prints_other_plans() -> None:
    assert differences(flow(), flow(stateful=[]), same_spark=False) == []
    other = differences(flow(), flow(mode="update"), same_spark=False)
    assert other == [Difference("mode", "append", "update")]


# ----------------------------------------------------------------------------- the directory


@dataclass
class Named:
    name: str
    place: Any = None
    sink: Any = field(init=False)

    def __post_init__(self) -> None:
        self.sink = self


@dataclass
class Pipe:
    name: str


def check(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    flows: dict[str, Document],
    name: str = "shop",
    version: str = "4.3.0",
) -> None:
    monkeypatch.setattr(checkpoints, "described", lambda flow, pipeline: flows[flow.name])
    with checkpoints.held(NOBODY, str(directory)) as store:
        named = cast(Any, [Named(one) for one in flows])
        pipe, place = cast(Any, Pipe(name)), str(directory)
        old = checkpoints.known(store, place, pipe)
        document = checkpoints.check(store, place, pipe, named, version, old)
        checkpoints.note(store, document, old)


def refused(*arguments: Any, **named: Any) -> str:
    with pytest.raises(BadPipeline) as bad:
        check(*arguments, **named)
    return str(bad.value)


def test_first_run_writes_down_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "deep" / "checkpoint"
    check(place, monkeypatch, {"out": flow()})
    written = json.loads((place / "pipeline.json").read_text())
    assert written == {"version": 1, "pipeline": "shop", "spark": "4.3", "flows": {"out": flow()}}
    assert sorted(os.listdir(place)) == [".lock", "pipeline.json"]
    check(place, monkeypatch, {"out": flow()})


def begin(flow: Path) -> None:
    """As Spark does with the first batch."""
    (flow / "offsets").mkdir(parents=True)
    (flow / "offsets" / "0").touch()


def test_change_is_refused_only_while_the_flow_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, monkeypatch, {"out": flow()})
    # Killed before the query has written anything: there is nothing to follow.
    check(tmp_path, monkeypatch, {"out": flow(mode="complete")})
    check(tmp_path, monkeypatch, {"out": flow()})
    begin(tmp_path / "out")
    line = refused(tmp_path, monkeypatch, {"out": flow(mode="update")})
    assert line == (
        "the checkpoint of flow out cannot follow a change of mode: append → update; undo it, or "
        f"give another --checkpoint, or delete {tmp_path}/out (then this flow reads again from "
        "`start`, and what it has written already is written again)"
    )
    check(tmp_path, monkeypatch, {"out": flow()})
    shutil.rmtree(tmp_path / "out")
    check(tmp_path, monkeypatch, {"out": flow(mode="update")})


def test_all_differences_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, {"one": flow(), "two": flow()})
    for name in ("one", "two"):
        begin(tmp_path / name)
    other = flow(mode="update", stateful=[])
    lines = refused(tmp_path, monkeypatch, {"one": other, "two": other}).splitlines()
    assert len(lines) == 4


def test_sinks_may_come_and_go_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, monkeypatch, {"one": flow()})
    begin(tmp_path / "one")
    check(tmp_path, monkeypatch, {"two": flow()})
    assert "mode" in refused(tmp_path, monkeypatch, {"one": flow(mode="update")})
    check(tmp_path, monkeypatch, {"one": flow(), "two": flow()})


def test_checkpoint_of_another_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, {"out": flow()})
    line = refused(tmp_path, monkeypatch, {"out": flow()}, name="bank")
    assert "is the checkpoint of the pipeline shop, not of bank; give another" in line


def test_directory_with_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "offsets").mkdir()
    line = refused(tmp_path, monkeypatch, {"out": flow()})
    assert "is not a pipeline's checkpoint: it holds offsets and no pipeline.json" in line


def test_crash_before_the_first_run_wrote_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / checkpoints.TEMPORARY).write_text('{"vers')
    check(tmp_path, monkeypatch, {"out": flow()})


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', '{"version": 1, "flows": 3}'])
def test_damaged_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "pipeline.json").write_text(text)
    line = refused(tmp_path, monkeypatch, {"out": flow()})
    assert "pipeline.json" in line
    assert "give another --checkpoint" in line


def test_note_of_a_later_ottla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipeline.json").write_text('{"version": 2, "shape": []}')
    assert "has version 2, this Ottla knows version 1" in refused(
        tmp_path, monkeypatch, {"out": flow()}
    )


def test_second_run_is_refused_and_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    with (
        checkpoints.held(NOBODY, str(tmp_path)),
        pytest.raises(BadPipeline, match=rf"another run \(process {os.getpid()}\) is at work"),
        checkpoints.held(NOBODY, str(tmp_path)),
    ):
        pass
    with checkpoints.held(NOBODY, tmp_path.as_uri()):
        pass


def test_killed_run_holds_nothing(tmp_path: Path) -> None:
    program = """
import os, sys
from ottla.pipelines.running import checkpoints
with checkpoints.held(None, sys.argv[1]):
    os._exit(3)
"""
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    assert ended.returncode == 3
    with checkpoints.held(NOBODY, str(tmp_path)):
        pass


def test_checkpoint_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(BadPipeline, match="give another --checkpoint"),
        checkpoints.held(NOBODY, str(tmp_path / "file" / "checkpoint")),
    ):
        pass


def test_where_a_checkpoint_is() -> None:
    assert checkpoints.local_path("/a/b") == Path("/a/b")
    assert checkpoints.local_path("a b") == Path("a b")
    assert checkpoints.local_path("file:///a/b%20c") == Path("/a/b c")
    assert checkpoints.local_path("s3a://bucket/x") is None
    assert checkpoints.local_path("hdfs://host:9000/x") is None
    assert checkpoints.flow_location("s3a://bucket/x/", "out") == "s3a://bucket/x/out"
