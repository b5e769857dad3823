"""A directory of one node is lost while clients send: others lead what was in it (KIP-858)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from cluster.hanging_disks import mounted_file
from cluster.steady_load import all_flow, finish_all
from cluster.stories import cluster_with, partitions_by, under_load
from scenarios.polling import until

ITS_NODE = 1
PATIENCE_S = 120.0


def test_the_leaders_of_a_directory_that_is_lost_move(tmp_path: Path) -> None:
    """A file system that has lost trust in its disk turns read-only (KIP-858)."""
    with ExitStack() as stack:
        # Of equal size, so that each gets its share of the partitions.
        places = [tmp_path / "first", tmp_path / "second"]
        devices = [
            stack.enter_context(mounted_file(place.with_suffix(".img"), place, "errors=remount-ro"))
            for place in places
        ]
        directories = [place / "data" for place in places]
        with cluster_with(tmp_path, ITS_NODE, directories) as cluster, under_load(cluster) as loads:
            lying_there = {
                (load.topic, int(path.name.rpartition("-")[2]))
                for load in loads
                for path in directories[1].glob(f"{load.topic}-*")
            }

            def led_there() -> list[tuple[str, int]]:
                return [
                    (topic, each.id)
                    for topic in {load.topic for load in loads}
                    for each in partitions_by(cluster, ITS_NODE + 1, topic)
                    if each.leader == ITS_NODE and (topic, each.id) in lying_there
                ]

            assert led_there(), "node 1 leads something in its second directory"
            Path(f"/sys/fs/ext4/{devices[1]}/trigger_fs_error").write_text("by a test")
            until(lambda: not led_there(), "nobody has taken over", PATIENCE_S)
            all_flow(loads)
            cluster[ITS_NODE].check_alive()
            leaders = [e.leader for load in loads for e in partitions_by(cluster, 2, load.topic)]
            assert ITS_NODE in leaders, "what is in its other directory, it leads still"
            finish_all(loads)
