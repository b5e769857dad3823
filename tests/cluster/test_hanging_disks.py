"""One node's disk stops answering while clients send: others take over, and it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hanging_disks import HangingDisk
from cluster.steady_load import all_flow, finish_all
from cluster.stories import await_in_sync, await_replaced, move_controller, under_load
from ottla.testing import Cluster

ITS_NODE = 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingDisk]:
    """The disk of node 1, mounted where the cluster will look for its data."""
    made = HangingDisk(tmp_path, tmp_path / "cluster" / f"node-{ITS_NODE}")
    made.mount()
    try:
        yield made
    finally:
        made.unmount()


@pytest.mark.parametrize("is_controller", [False, True], ids=["a broker", "the controller"])
def test_a_node_whose_disk_hangs_is_replaced_and_comes_back(
    is_controller: bool, tmp_path: Path, disk: HangingDisk
) -> None:
    with Cluster(data_dir=tmp_path / "cluster") as cluster:
        move_controller(cluster, lambda node: (node == ITS_NODE) == is_controller)
        with under_load(cluster) as loads:
            with disk.hanging():
                await_replaced(cluster, loads, ITS_NODE)
                all_flow(loads)
            await_in_sync(cluster, loads)
            all_flow(loads)
            finish_all(loads)
