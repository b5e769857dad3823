"""Which archive of classes a JVM takes, and what a bad one does. Making one: tests/spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipelines.launch import class_archive
from ottla.pipelines.launch.class_archive import archive_of, java_options, make

HOME = Path("/spark")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(class_archive.SWITCH, raising=False)
    if shutil.which("java") is None:
        pytest.skip("no java here, so no archive")
    return tmp_path


def test_each_java_and_each_spark_has_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = archive_of(HOME)
    assert first is not None
    assert first == archive_of(HOME)
    assert cache in first.parents
    assert archive_of(Path("/other")) != first
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    other = archive_of(HOME)
    assert other != first
    os.utime(java, (1, 1))
    assert archive_of(HOME) != other, "another Java in the same place"


def test_a_spark_that_is_installed_again_or_gets_another_jar_has_a_new_one(tmp_path: Path) -> None:
    """Java refuses the old one, since it looks at the jars' names, sizes and times."""
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    os.utime(home / "jars", (1, 1))
    first, other = archive_of(home), archive_of(HOME)
    assert first is not None
    assert other is not None
    for archive in (first, other):
        archive.write_bytes(b"something large")
    (home / "jars" / "postgresql.jar").touch()
    second = archive_of(home)
    assert second is not None
    assert second != first
    with pytest.raises(OSError, match="spark-submit"):
        make(home, second)
    left = {path.name for path in first.parent.glob("*.jsa")}
    assert left == {second.name, other.name}, "nobody takes the first one any more"


def test_making_that_fails_is_not_tried_at_the_end_of_each_command(tmp_path: Path) -> None:
    home = tmp_path / "no spark here"
    archive = archive_of(home)
    assert archive is not None
    with pytest.raises(OSError, match="spark-submit"):
        make(home, archive)
    assert archive.stat().st_size == 0
    assert java_options(home) == ""
    left = {path.name for path in archive.parent.iterdir()}
    assert left == {archive.name, archive.with_suffix(".lock").name}


def test_what_a_maker_has_left_that_was_killed_goes_with_the_next(tmp_path: Path) -> None:
    """A service's end kills whatever the service has started."""
    home = tmp_path / "no spark here"
    archive = archive_of(home)
    assert archive is not None
    script = (
        "import os, sys, pathlib; from ottla.pipelines.launch import class_archive\n"
        "def killed(home, directory, archive):\n"
        "    archive.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), 9)\n"
        "class_archive._run_and_archive = killed\n"
        "class_archive.make(*map(pathlib.Path, sys.argv[1:]))"
    )
    subprocess.run([sys.executable, "-c", script, str(home), str(archive)], timeout=60)
    assert not archive.exists()
    with pytest.raises(OSError, match="spark-submit"):
        make(home, archive)
    left = {path.name for path in archive.parent.iterdir()}
    assert left == {archive.name, archive.with_suffix(".lock").name}


@pytest.mark.parametrize("name", ["o'brien", "a b", "a:b"])
def test_where_java_could_not_be_told_the_place_there_is_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    assert archive_of(HOME) is None


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of(HOME)
    assert archive is not None
    archive.write_bytes(b"something")
    assert str(archive) in java_options(HOME)
    monkeypatch.setenv(class_archive.SWITCH, "off")
    assert java_options(HOME) == ""


def test_without_an_archive_nothing_is_said_to_java() -> None:
    archive = archive_of(HOME)
    assert archive is not None
    assert java_options(HOME) == ""
    # Tried in vain.
    archive.touch()
    assert java_options(HOME) == ""


@pytest.mark.parametrize("damage", [b"x", b"\0" * 5000, bytes(range(256)) * 1000])
def test_a_damaged_archive_is_ignored_in_silence(damage: bytes) -> None:
    archive = archive_of(HOME)
    assert archive is not None
    archive.write_bytes(damage)
    command = ["java", *java_options(HOME).split(), "-cp", "nowhere", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    plain = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr == plain.stderr.replace(", sharing", "")
