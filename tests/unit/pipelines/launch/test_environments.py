"""The environment of a cluster's executors: packed, and named in Spark's settings."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.launch import environments


def made(target: Path) -> Path:
    command = [sys.executable, "-m", "venv", "--without-pip", str(target)]
    subprocess.run(command, check=True, timeout=60)
    return target


def test_an_environment_becomes_one_file_without_spark_in_it(tmp_path: Path) -> None:
    prefix = made(tmp_path / "environment")
    (site,) = prefix.glob("lib/python3*/site-packages")
    for name in ("pyspark", "ottla"):
        (site / name).mkdir()
        (site / name / "__init__.py").touch()
    size = environments.pack(prefix, tmp_path / "packed.tar.gz")
    assert size == (tmp_path / "packed.tar.gz").stat().st_size
    with tarfile.open(tmp_path / "packed.tar.gz") as archive:
        names = archive.getnames()
    assert "bin/python" in names
    assert any(name.endswith("ottla/__init__.py") for name in names)
    assert not any("pyspark" in name for name in names)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["environment", "packed.tar.gz"]


def test_what_cannot_be_packed_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match=r"cannot be packed: .*ottla\[spark\]"):
        environments.pack(tmp_path, tmp_path / "packed.tar.gz")
    with pytest.raises(PipelineFailed, match=r"call it ….tar.gz"):
        environments.pack(tmp_path, tmp_path / "packed.tar")
    with pytest.raises(PipelineFailed, match="cannot be written"):
        environments.pack(made(tmp_path / "environment"), tmp_path / "nowhere" / "packed.tar.gz")


def test_the_files_own_archives_are_sent_too() -> None:
    given = {"spark.archives": "data.zip#data,hdfs://head/more.zip"}
    found = environments.settings("/environment.tar.gz", given)
    assert found["spark.archives"].split(",") == [
        f"{Path.cwd()}/data.zip#data",
        "hdfs://head/more.zip",
        f"/environment.tar.gz#{environments.NAME}",
    ]


def test_the_jvm_is_launched_where_the_same_path_leads_to_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/usr/bin/python3")
    before = Path.cwd()
    for _ in range(2):
        with environments.launching(tmp_path / "launch"):
            python = Path(environments.PYTHON)
            asked = [str(python), "-c", "import sys; print(sys.prefix)"]
            found = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60)
        assert Path(found.stdout.strip()).resolve() == Path(sys.prefix).resolve()
    assert Path.cwd() == before
