"""A node of an earlier release becomes the first of three, as docs/operating.md says it."""

from __future__ import annotations

import json
import re
import signal
import tarfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from cluster.steady_load import SteadyLoad
from ottla.testing.topics import create_topic
from scenarios.hosts import Host, Site, site, typed_in
from scenarios.polling import until

DIRECTORIES = Path(__file__).parent / "directories"
# By the commit that made it: the level of its voters, and what is in its topic `kept`.
RELEASES = {"5ac6ac9": 0, "188b365": 1}
KEPT = sorted(f"message {number}" for number in range(6))
PATIENCE_S = 90.0
HEADING = "From one node to three"


def kept(bootstrap: str) -> list[str]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("kept", index, 0) for index in (0, 1)])
    found: list[str] = []

    def has_all() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return len(found) == len(KEPT)

    until(has_all, "what was kept", PATIENCE_S)
    consumer.close()
    return sorted(found)


def begin(first: Host, release: str) -> None:
    with tarfile.open(DIRECTORIES / f"one-node-{release}.tar.gz") as archive:
        archive.extractall(first.data, filter="data")
    first.configure(
        {
            "node.id": 1,
            "log.dirs": "/var/lib/ottla/data",
            "listeners": "PLAINTEXT://10.0.0.1:9092",
            "http.listener": "10.0.0.1:9644",
            # The messages are of the day on which the directory was made.
            "log.retention.ms": -1,
        }
    )
    first.type("systemctl start ottla")
    first.type("curl -sf --retry 60 --retry-all-errors --retry-delay 1 http://10.0.0.1:9644/readyz")


def grow(place: Site, level: int) -> None:
    """Each block once; what is for a node 2 is typed at node 3, too, with its number."""
    blocks = typed_in("operating.md", HEADING)
    assert [block.host for block in blocks] == [1, 2, 1, 1]
    to_level, join, vote, spread = blocks
    if level == 0:
        place.type(to_level)
    for number in (2, 3):
        place[number].type(join.code.replace("N=2", f"N={number}"))
        place.type(vote._replace(code=vote.code.replace("N=2", f"N={number}")))
    place.type(spread)


@pytest.mark.parametrize(("release", "level"), RELEASES.items())
def test_a_node_of_an_earlier_release_becomes_the_first_of_three_under_load(
    tmp_path: Path, release: str, level: int
) -> None:
    """Without a stop, and nothing acknowledged is lost when the first then dies."""
    with site(tmp_path) as place:
        first = place[1]
        begin(first, release)
        create_topic(first.bootstrap, "load-of-librdkafka", 3, {})
        assert kept(first.bootstrap) == KEPT
        pid = first.pid
        identity = first.data / "meta.properties"
        cluster_id = re.search(r"cluster\.id=(\S+)", identity.read_text())
        with SteadyLoad("librdkafka", first.bootstrap, partitions=3) as load:
            load.await_flow()
            grow(place, level)
            load.await_flow()
            assert first.pid == pid
            assert first.log().count("Ottla listens") == 1, "it was started again"
            status = json.loads(place[3].type("ottla quorum status --json"))
            assert status["kraft_version"] == 1
            assert {each["node"]: each["role"] != "observer" for each in status["replicas"]} == {
                1: True,
                2: True,
                3: True,
            }
            first.end(signal.SIGKILL)
            load.await_flow()
            assert kept(place[2].bootstrap) == KEPT
            first.type("systemctl start ottla")
            load.await_flow()
            load.finish()
        load.check()
        assert identity.read_text().count(cluster_id[1]) == 1  # type: ignore[index]
