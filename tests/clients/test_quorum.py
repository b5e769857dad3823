"""The metadata quorum as Kafka's own admin client shows it; kafka-metadata-quorum rests on that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from clientkit.catalog import BY_NAME
from clientkit.driver import Driver
from clientkit.toolchains import require

from ottla.testing import Cluster
from scenarios.polling import until


@pytest.fixture
def separate_cluster() -> Any:
    """Node 1 is a broker, which observes; nodes 2 to 4 are controllers."""
    require(BY_NAME["java"].toolchain)
    with Cluster(nodes=1, controllers=3) as cluster:
        yield cluster


def test_voters_and_observers_are_described_with_what_they_have(
    separate_cluster: Cluster, new_client: Callable[..., Driver]
) -> None:
    client = new_client("java", separate_cluster.bootstrap)
    separate_cluster.create_topic("described")

    seen: dict[str, Any] = {}

    def all_have_all() -> bool:
        seen.update(client.call("describe_quorum"))
        replicas = [*seen["voters"], *seen["observers"]]
        ends = {replica["end_offset"] for replica in replicas}
        return bool(seen["observers"]) and ends == {seen["high_watermark"]}

    until(all_have_all, "all replicas at the high watermark")
    assert [voter["id"] for voter in seen["voters"]] == [2, 3, 4]
    assert [observer["id"] for observer in seen["observers"]] == [1]
    assert seen["leader"] in (2, 3, 4)
    assert seen["epoch"] > 0
    for replica in (*seen["voters"], *seen["observers"]):
        assert replica["fetched_ms"] >= replica["caught_up_ms"] > 0
    # Voters of a setting have no directories (kraft.version 0), an observer says which it has.
    assert {voter["directory"] for voter in seen["voters"]} == {"AAAAAAAAAAAAAAAAAAAAAA"}
    assert seen["observers"][0]["directory"] != "AAAAAAAAAAAAAAAAAAAAAA"
    for node_id, endpoints in seen["endpoints"].items():
        listener = str(separate_cluster[int(node_id)].settings["listeners"])
        assert [f"CONTROLLER://{endpoint}" for endpoint in endpoints] == [listener]
