"""`ottla storage`: whose a data directory is, before its first start."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.storage.disk import RealDisk
from ottla.cli.main import main
from ottla.log.directory import DataDirectory

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


def formatted(path: Path, cluster_id: str = CLUSTER, node_id: int = 1, *more: str) -> int:
    options = ["--cluster-id", cluster_id, "--node-id", str(node_id), "--data-dir", str(path)]
    return main(["storage", "format", *options, *more])


def test_a_directory_becomes_that_of_a_node(tmp_path: Path) -> None:
    assert formatted(tmp_path / "data", node_id=3) == 0
    identity = DataDirectory(RealDisk(), str(tmp_path / "data")).read_identity()
    assert identity is not None
    assert (identity.cluster_id, identity.node_id) == (CLUSTER, 3)
    assert len(identity.directory_id) == 16


def test_what_is_formatted_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    formatted(tmp_path)
    before = (tmp_path / "meta.properties").read_bytes()
    assert formatted(tmp_path) == 1
    assert "--ignore-formatted" in capsys.readouterr().err
    assert formatted(tmp_path, CLUSTER, 1, "--ignore-formatted") == 0
    assert formatted(tmp_path, CLUSTER, 2, "--ignore-formatted") == 1
    assert "is node 1 of the cluster" in capsys.readouterr().err
    assert (tmp_path / "meta.properties").read_bytes() == before


@pytest.mark.parametrize("cluster_id", ["", "short", "no base64!", CLUSTER + "AAAA"])
def test_an_id_that_is_none_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster_id: str
) -> None:
    assert formatted(tmp_path / "data", cluster_id) == 2
    assert "ottla storage random-id" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_random_ids_are_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "random-id"]) == 0
    made = capsys.readouterr().out.strip()
    assert formatted(tmp_path, made) == 0
