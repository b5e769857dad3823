"""Which Spark may stand by for whom; the processes are in tests/scenarios/test_standby.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from ottla.cli.failures import StartAgain
from ottla.cli.pipeline_run import failures_told
from ottla.cli.standby import is_wanted
from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.launch.session import start_session, wish_of
from ottla.pipelines.launch.standby import held, memory
from ottla.pipelines.launch.standby.held import Held, UnfitSpark, held_session, hold
from ottla.pipelines.launch.standby.likeness import Wish, changed_since, files_of_python
from ottla.spark.startup.environment import scratch


def pipeline(
    spark: dict[str, str] | None = None, secrets: frozenset[str] = frozenset()
) -> Pipeline:
    return Pipeline(
        name="shop", file=Path("p.yaml"), bootstrap="a:1", sources={}, views={}, tests={}, sinks={},
        spark=spark or {}, secrets=secrets,
    )  # fmt: skip


def wish(
    spark: dict[str, str] | None = None,
    *,
    secrets: frozenset[str] = frozenset(),
    master: str | None = None,
    checkpoint: str | None = None,
) -> Wish | None:
    given = pipeline(spark, secrets)
    return wish_of(given, master=master, jars=(), checkpoint=checkpoint)


def key(**options: str) -> str:
    found = wish(options)
    assert found is not None
    return found.key()


def test_every_setting_counts() -> None:
    assert key(a="1") == key(a="1")
    assert len({key(), key(a="1"), key(a="2"), key(b="1")}) == 4
    other_master, elsewhere = wish(master="local[7]"), wish(checkpoint="s3a://bucket/shop")
    assert other_master is not None
    assert elsewhere is not None
    assert len({key(), other_master.key(), elsewhere.key()}) == 3


def test_whatever_spark_inherits_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = key()
    monkeypatch.setenv("COLUMNS", "33")
    monkeypatch.setenv("SHLVL", "9")
    assert key() == before
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert key() != before
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.chdir(tmp_path)
    assert key() != before


def test_a_directory_that_was_made_anew_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    before = key()
    place.rename(tmp_path / "aside")
    place.mkdir()
    monkeypatch.chdir(place)
    assert key() != before


def test_own_temporary_files_do_not_count() -> None:
    found = wish()
    assert found is not None
    assert str(scratch()) not in str(found.to_json())
    there = Path("/tmp/ottla-spark-there")
    settings = Wish.from_json(found.to_json()).settings_in(there)
    assert settings["spark.sql.warehouse.dir"] == f"{there}/warehouse"


def test_none_stands_by_with_a_secret_or_for_a_cluster() -> None:
    secrets = frozenset({"hunter22"})
    assert wish({"spark.ssl.keyPassword": "hunter22"}, secrets=secrets) is None
    assert wish({"spark.x": "jdbc:h?password=other"}) is None
    assert wish(secrets=secrets) is not None
    assert wish(master="spark://head:7077") is None
    assert wish({"spark.master": "yarn"}) is None
    assert wish({"spark.jars.packages": "a:b:1"}) is None


def test_a_file_that_changed_or_went_is_told(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.touch()
    now = file.stat().st_ctime
    assert changed_since(now + 1, [str(file)]) is None
    assert changed_since(now, [str(file)]) == str(file)
    file.unlink()
    assert changed_since(now, [str(file)]) == str(file)
    # In an archive, which tells for all of it.
    archive = tmp_path / "archive.zip"
    archive.touch()
    assert changed_since(archive.stat().st_ctime + 1, [f"{archive}/package/module.py"]) is None
    assert held.__file__ in files_of_python()


def test_memory_is_none_where_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.available_bytes() > 0
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "none")
    assert memory.available_bytes() == 0


# -------------------------------------------------------------------------- the one that is held


@pytest.fixture
def other_spark() -> Iterator[SparkSession]:
    """Started with settings that no pipeline of ours has."""
    spark = cast(SparkSession, object())
    hold(Held(spark, "local[*]", {"spark.app.name": "ottla other"}))
    yield spark
    held._held = None


def test_only_the_very_same_settings_are_served(other_spark: SparkSession) -> None:
    assert held_session("local[*]", {"spark.app.name": "ottla other"}) is other_spark
    with pytest.raises(UnfitSpark):
        held_session("local[*]", {"spark.app.name": "ottla other", "spark.x": "1"})
    with pytest.raises(UnfitSpark):
        held_session("local[1]", {"spark.app.name": "ottla other"})


@pytest.mark.usefixtures("other_spark")
def test_a_command_that_finds_another_spark_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the file was changed between two readings of it."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(StartAgain) as again, failures_told(pipeline()):
        start_session(pipeline(), is_brief=True)
    # The next process holds none, and starts its own.
    monkeypatch.setattr(held, "_held", None)
    assert is_wanted(True)
    monkeypatch.setattr(os, "environ", {**os.environ, **again.value.variables})
    assert not is_wanted(True)


class Terminal:
    def __init__(self, *, is_there: bool) -> None:
        self._is_there = is_there

    def isatty(self) -> bool:
        return self._is_there


@pytest.mark.parametrize(
    ("asked", "stdin", "stderr", "ci", "wanted"),
    [
        (None, True, True, "", True),
        (None, True, True, "false", True),
        (None, True, True, "true", False),
        (None, False, True, "", False),
        (None, True, False, "", False),
        (True, False, False, "true", True),
        (False, True, True, "", False),
    ],
)
def test_it_is_for_those_who_wait_or_ask(
    monkeypatch: pytest.MonkeyPatch,
    *,
    asked: bool | None,
    stdin: bool,
    stderr: bool,
    ci: str,
    wanted: bool,
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(sys, "stdin", Terminal(is_there=stdin))
    monkeypatch.setattr(sys, "stderr", Terminal(is_there=stderr))
    assert is_wanted(asked) == wanted
