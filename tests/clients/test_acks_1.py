"""What acks=1 has acknowledged is there for whoever asks next, with every client.

The broker's syncs are held until the question has arrived, so that no answer comes by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from clientkit.catalog import able
from clientkit.driver import Driver

from ottla.broker.network import waiting
from scenarios.held_syncs import HeldSyncs
from scenarios.in_process import BrokerInside

every_client = pytest.mark.parametrize("name", able())
REPETITIONS = 5


class Cluster:
    """Ottla with syncs that are held, or a cluster of somebody else's as it is."""

    def __init__(self, bootstrap: str, syncs: HeldSyncs | None) -> None:
        self.bootstrap = bootstrap
        self._syncs = syncs
        self._pool = ThreadPoolExecutor(1)

    def hold(self, topic: str) -> None:
        if self._syncs is not None:
            self._syncs.hold(topic)

    def heal_once_looked_up(self, topic: str) -> None:
        if self._syncs is not None:
            self._syncs.until_looked_up(topic)
            self._syncs.heal()

    def heal_once_fetched(self, topic: str) -> None:
        if self._syncs is not None:
            self._syncs.until_fetched(topic)
            self._syncs.heal()

    def answer(self, topic: str, ask: Callable[[], Any]) -> Any:
        """What a look-up is told that finds the sync under way."""
        asked = self._pool.submit(ask)
        self.heal_once_looked_up(topic)
        return asked.result()


@pytest.fixture
def cluster(
    existing_bootstrap: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    if existing_bootstrap is not None:
        yield Cluster(existing_bootstrap, None)
        return
    # However slow the machine is, nobody is told that the sync takes too long.
    monkeypatch.setattr(waiting, "END_WAIT_S_MAX", 30.0)
    with BrokerInside(tmp_path / "data") as broker:
        yield Cluster(broker.bootstrap, HeldSyncs(broker, tmp_path / "data"))


@pytest.fixture
def client(name: str, cluster: Cluster, new_client: Callable[..., Driver], topic: str) -> Driver:
    client = new_client(name, cluster.bootstrap)
    client.create_topic(topic, partitions=1)
    return client


@every_client
def test_the_end_is_after_what_was_just_acknowledged(
    client: Driver, cluster: Cluster, topic: str
) -> None:
    for number in range(REPETITIONS):
        cluster.hold(topic)
        client.produce(topic, [f"{number}"], acks="1")
        ends = cluster.answer(topic, lambda: client.call("offsets", topic=topic, partition=0))
        assert ends == {"earliest": 0, "latest": number + 1}


@every_client
def test_what_was_just_acknowledged_is_found_by_its_time(
    client: Driver, cluster: Cluster, topic: str
) -> None:
    for number in range(REPETITIONS):
        time_ms = 1_700_000_000_000 + number
        record = {"value": f"{number}", "timestamp": time_ms}
        cluster.hold(topic)
        client.call("produce", topic=topic, records=[record], acks="1")
        asked = {"topic": topic, "partition": 0, "timestamp": time_ms}
        assert cluster.answer(topic, lambda a=asked: client.call("offset_for_time", **a)) == number  # type: ignore[misc]


@pytest.mark.parametrize("name", able("offset_of_max_timestamp"))
def test_what_was_just_acknowledged_is_the_youngest(
    client: Driver, cluster: Cluster, topic: str
) -> None:
    for number in range(REPETITIONS):
        record = {"value": f"{number}", "timestamp": 1_700_000_000_000 + number}
        cluster.hold(topic)
        client.call("produce", topic=topic, records=[record], acks="1")
        asked = {"topic": topic, "partition": 0}
        assert (
            cluster.answer(topic, lambda a=asked: client.call("offset_of_max_timestamp", **a))  # type: ignore[misc]
            == number
        )


@every_client
def test_what_was_just_acknowledged_can_be_deleted(
    client: Driver, cluster: Cluster, topic: str
) -> None:
    for number in range(1, REPETITIONS):
        cluster.hold(topic)
        client.produce(topic, [f"{number}"], acks="1")
        asked = {"topic": topic, "partition": 0, "before": number}
        assert cluster.answer(topic, lambda a=asked: client.call("delete_records", **a)) == number  # type: ignore[misc]


@pytest.mark.parametrize("name", able("assign"))
def test_who_reads_from_what_was_just_acknowledged_is_not_reset(
    client: Driver, cluster: Cluster, topic: str
) -> None:
    cluster.hold(topic)
    for number in range(3):
        client.produce(topic, [f"{number}"], acks="1")
    consumer = client.consume(partitions=[[topic, 0, 2]], reset="earliest")
    cluster.heal_once_fetched(topic)
    consumer.wait_records(1)
    assert consumer.values == ["2"]


@every_client
def test_a_group_that_begins_at_the_end_begins_after_what_was_acknowledged(
    client: Driver, cluster: Cluster, topic: str, group: str
) -> None:
    cluster.hold(topic)
    client.produce(topic, ["before"], acks="1")
    consumer = client.consume(topics=[topic], group=group, reset="latest")
    cluster.heal_once_looked_up(topic)
    while not consumer.values:
        client.produce(topic, ["after"], acks="1")
    assert set(consumer.values) == {"after"}
