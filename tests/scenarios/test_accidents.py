"""docs/accidents.md: clusters are broken as its headings say, and its boxes are typed."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from ottla.testing.topics import create_topic
from scenarios.hosts import Host, Site, Typed, site, typed_in
from scenarios.polling import until
from scenarios.shell import Shell

PAGE = "accidents.md"
CLUSTER_ID = "kVl7ZAEnT0mgsQ2xOTxGGw"
PATIENCE_S = 90.0
PARTITIONS = 4
NODES = (1, 2, 3)
DATA, SECOND = "/var/lib/ottla/data", "/disk-2/ottla"
RECORDS = "where voters are records"


def begin(place: Site, *, has_records: bool = False) -> None:
    """Three nodes with two disks each, as the page has them."""
    addresses = [f"10.0.0.{number}:9092" for number in NODES]
    voters = ",".join(f"{number}@{at}" for number, at in zip(NODES, addresses, strict=True))
    for host in place:
        host.configure(
            {
                "node.id": host.number,
                "log.dirs": f"{DATA},{SECOND}",
                "listeners": f"PLAINTEXT://10.0.0.{host.number}:9092",
                "http.listener": f"10.0.0.{host.number}:9644",
                "controller.quorum.voters": voters,
                "min.insync.replicas": 2,
            }
        )
        identity = f"--cluster-id {CLUSTER_ID} --node-id {host.number}"
        host.type(f"ottla storage format {identity} --data-dir {DATA} --data-dir {SECOND}")
        host.type("systemctl start ottla")
    for host in place:
        await_ready(place, host.number)
    if has_records:
        place[1].type("ottla features upgrade kraft.version=1")
    create_topic(place.bootstrap, "orders", PARTITIONS, {}, replication_factor=3)


def await_ready(place: Site, number: int) -> None:
    url = f"http://10.0.0.{number}:9644/readyz"
    place[number].type(f"curl -sf --retry 100 --retry-all-errors --retry-delay 1 {url}")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as made:
        yield made


class Orders:
    """What was acknowledged, and must be there to the end."""

    def __init__(self, place: Site) -> None:
        self._place = place
        self._sent = 0

    def send(self, count: int = 40) -> None:
        failures: list[Any] = []
        settings = {"bootstrap.servers": self._place.bootstrap, "acks": "all", "log_level": 0}
        producer = Producer(settings)
        for number in range(self._sent, self._sent + count):
            producer.produce(
                "orders",
                str(number),
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: failures.append(error),
            )
        assert producer.flush(PATIENCE_S) == 0
        assert failures == [None] * count
        self._sent += count

    def check(self) -> None:
        """Every one once, and all replicas are in sync again."""
        until(lambda: whole(self._place) == set(NODES), "all are in sync again", PATIENCE_S)
        settings = {"bootstrap.servers": self._place.bootstrap, "group.id": secrets.token_hex(4)}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest", "log_level": 0})
        consumer.subscribe(["orders"])
        found: list[int] = []

        def has_all() -> bool:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(int(message.value()))
            return len(found) >= self._sent

        until(has_all, f"{self._sent} orders", PATIENCE_S)
        consumer.close()
        assert sorted(found) == list(range(self._sent))


def status(place: Site) -> dict[str, Any]:
    """As the first box says, in this process."""
    look = typed_in(PAGE, None)[0].code.splitlines()[1]
    words = place[1].here(look).split()
    done = Shell(place.bootstrap).run(*words[1:], "--json")
    return dict(json.loads(done.stdout))


def whole(place: Site) -> set[int]:
    """The nodes that serve and have all they should have."""
    return {
        each["node_id"]
        for each in status(place)["nodes"]
        if each["state"] == "serving" and not each["out_of_sync"] and not each["metadata_lag"]
    }


def for_node(typed: Typed, number: int, host: int | None = None) -> Typed:
    """A box that says N=…, for another node."""
    own = [line for line in typed.code.splitlines() if line.startswith("N=")]
    assert len(own) == 1
    return Typed(host or number, typed.code.replace(own[0], f"N={number}"))


def test_a_clock_is_wrong_a_node_is_lost_and_then_its_disks(place: Site, tmp_path: Path) -> None:
    """One accident after the other, each mended as the page says."""
    wrong_clock(place[3], tmp_path / "a-day-fast")
    begin(place)
    orders = Orders(place)
    orders.send()
    told = "the clock of this node is 864"
    until(lambda: any(told in host.log() for host in place), "the clock is told", PATIENCE_S)
    stop, start, arrival = typed_in(PAGE, "A clock is wrong")
    place.type(stop)
    orders.send()
    place[3].environment = {}
    place.type(start)
    place.type(arrival)

    for heading, lost in (
        ("A node is lost", ()),
        ("A disk is lost", (DATA, SECOND)),
        ("One disk of several is lost", (SECOND,)),
    ):
        orders.send()
        assert list((place[2].root / "disk-2/ottla").glob("orders-*")), "nothing lies there"
        place[2].lose(*lost)
        until(lambda: 2 not in whole(place), "it is seen that it is gone", PATIENCE_S)
        orders.send()
        (box,) = (each for each in typed_in(PAGE, heading) if RECORDS not in each.code)
        place.type(box)
        until(lambda: whole(place) == set(NODES), f"{heading}: all is mended", PATIENCE_S)
    orders.check()


def wrong_clock(host: Host, directory: Path) -> None:
    """From its next start on, by a day."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        "import time\nright = time.time_ns\n"
        "time.time_ns = lambda: right() + 24 * 3600 * 1_000_000_000\n"
    )
    host.environment = {"PYTHONPATH": f"{directory}:{os.environ.get('PYTHONPATH', '')}"}


def test_a_disk_is_lost_where_voters_are_records(place: Site) -> None:
    begin(place, has_records=True)
    orders = Orders(place)
    orders.send()
    place[2].lose(DATA, SECOND)
    until(lambda: 2 not in whole(place), "it is seen that it is gone", PATIENCE_S)
    place[2].settings.write_text(
        place[2].here("controller.quorum.bootstrap.servers=10.0.0.1:9092\n")
        + "".join(
            line
            for line in place[2].settings.read_text().splitlines(keepends=True)
            if "quorum.voters" not in line
        )
    )
    boxes = [box for box in typed_in(PAGE, "A disk is lost") if RECORDS in box.code]
    assert [box.host for box in boxes] == [1, 2]
    for box in boxes:
        place.type(box)
    orders.send()
    orders.check()
    roles = {each["node_id"]: each["role"] for each in status(place)["nodes"]}
    assert sorted(roles.values()) == ["controller", "voter", "voter"]


def test_the_whole_site_is_lost_and_later_the_majority(place: Site) -> None:
    begin(place)
    orders = Orders(place)
    orders.send()
    snapshots(place)
    for host in place:
        host.lose("/var/lib/ottla", SECOND)
        (host.root / "var/lib/ottla").mkdir()
        shutil.copytree(place.path / f"backup/disk-2-of-{host.number}", host.here(SECOND))
    back, look = typed_in(PAGE, "The whole site is lost")
    for number in NODES:
        place.type(for_node(back, number))
    assert place.type(look).count("orders") == PARTITIONS
    orders.send()
    orders.check()
    lose_the_majority(place)
    orders.send()
    orders.check()
    place[1].end(signal.SIGKILL)
    orders.send()


def lose_the_majority(place: Site) -> None:
    place[2].lose(DATA, SECOND)
    place[3].lose(DATA, SECOND)
    alone, lead, join, vote = typed_in(PAGE, "The majority is lost")
    place.type(alone)
    place.type(lead)
    for number in (2, 3):
        place.type(for_node(join, number))
        place.type(for_node(vote, number, host=1))


def snapshots(place: Site) -> None:
    """Of all disks, in moments in which nothing runs: to the brokers, a power cut."""
    for host in place:
        os.kill(host.pid, signal.SIGSTOP)
    for host in place:
        shutil.copytree(host.here("/var/lib/ottla"), place.path / f"backup/node-{host.number}")
        shutil.copytree(host.here(SECOND), place.path / f"backup/disk-2-of-{host.number}")
