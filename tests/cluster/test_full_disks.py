"""One node's disk is full while clients send: others lead, nobody waits for it, it comes back."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hanging_disks import run
from cluster.steady_load import all_flow, finish_all
from cluster.stories import await_in_sync, await_replaced, cluster_with, under_load

ITS_NODE = 1
SMALL = "size=24m"
PIECE = bytes(64 * 1024)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk with little room."""
    place = tmp_path / "small"
    place.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", SMALL, "tmpfs", place)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error.stderr.strip()}")
    try:
        yield place
    finally:
        run("umount", "--lazy", place)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(PIECE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@pytest.mark.parametrize("has_metadata", [False, True], ids=["data", "data and metadata"])
def test_a_node_whose_disk_is_full_is_replaced_and_comes_back(
    has_metadata: bool, tmp_path: Path, small: Path
) -> None:
    metadata_dir = None if has_metadata else tmp_path / "metadata"
    with (
        cluster_with(tmp_path, ITS_NODE, [small / "data"], metadata_dir) as cluster,
        under_load(cluster) as loads,
    ):
        filler = small / "filler"
        fill(filler)
        await_replaced(cluster, loads, ITS_NODE)
        all_flow(loads)
        filler.unlink()
        await_in_sync(cluster, loads)
        all_flow(loads)
        finish_all(loads)
