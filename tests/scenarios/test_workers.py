"""`ottla start --workers`: several brokers of one host, each a process, behind one port."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.cli.figures import Figures
from ottla.config.workers import PORT_STEP
from ottla.testing import Broker, BrokerFailed
from ottla.testing.ports import free_ports, free_ports_in_a_row
from ottla.testing.topics import TopicNotCreated, create_topic
from scenarios.polling import until

WORKERS = 2
PARTITIONS = 6
PATIENCE_S = 60.0
NODES = {1, 1001}
ACCEPTED = "connections_accepted_total"


class Host:
    """The workers of one host; what is asked of one of them goes to its own pages."""

    def __init__(self, data_dir: Path) -> None:
        pages = free_ports_in_a_row(WORKERS)
        self.pages = {1: pages, 2: pages + 1}
        self.data_dir = data_dir
        self.broker = self.made()

    def made(self) -> Broker:
        settings = {"http.listener": f"127.0.0.1:{self.pages[1]}"}
        return Broker(settings, data_dir=self.data_dir, workers=WORKERS, ready_timeout_s=PATIENCE_S)

    def figures(self, worker: int) -> Figures:
        url = f"http://127.0.0.1:{self.pages[worker]}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            return Figures.parse(page.read().decode())

    def pids(self) -> dict[int, int]:
        """By the number of the worker, as its command line has it."""
        children = Path(f"/proc/{self.broker.pid}/task/{self.broker.pid}/children").read_text()
        found = {}
        for pid in map(int, children.split()):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--worker" in words:
                found[int(words[words.index("--worker") + 1])] = pid
        return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    if not Path("/proc/self/task").is_dir():
        pytest.skip("which process is which worker is read from /proc")
    made = Host(tmp_path / "data")
    with made.broker:
        yield made


class Load:
    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        self._producer = Producer({**settings, "log_level": 0})
        self._topic = topic
        self.sent = 0
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self.failed: list[str] = []

    def _take(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            place = (message.partition(), message.offset())
            self.acknowledged[message.value().decode()] = place

    def send(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            partition = number % PARTITIONS
            self._producer.produce(
                self._topic, str(number), partition=partition, callback=self._take
            )
            self._producer.poll(0)
        self.sent += count

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self.failed
        assert len(self.acknowledged) == self.sent


def stored(bootstrap: str, topic: str, count: int) -> dict[str, tuple[int, int]]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: dict[str, tuple[int, int]] = {}

    def has_all() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found[message.value().decode()] = (message.partition(), message.offset())
        return len(found) >= count

    until(has_all, f"{len(found)} of {count} messages came", PATIENCE_S)
    consumer.close()
    return found


def leaders(bootstrap: str, topic: str) -> set[int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return {each.leader for each in partitions.values()}


def test_clients_begin_at_one_port_and_go_on_at_the_leaders(host: Host) -> None:
    bootstrap = host.broker.bootstrap
    shared = int(bootstrap.rpartition(":")[2])
    before = {number: host.figures(number).total(ACCEPTED) for number in (1, 2)}

    def both_accept() -> bool:
        """The system chooses who gets a connection."""
        socket.create_connection(("127.0.0.1", shared)).close()
        return all(host.figures(number).total(ACCEPTED) > before[number] + 1 for number in (1, 2))

    until(both_accept, "all connections came to one worker", PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    brokers = admin.list_topics(timeout=PATIENCE_S).brokers
    assert {each.id: each.port for each in brokers.values()} == {
        1: shared + PORT_STEP,
        1001: shared + 2 * PORT_STEP,
    }
    create_topic(bootstrap, "t", PARTITIONS, {})
    assert leaders(bootstrap, "t") == NODES
    load = Load(bootstrap, "t")
    load.send(300)
    load.finish()
    assert stored(bootstrap, "t", 300) == load.acknowledged
    with pytest.raises(TopicNotCreated, match=r"on 1 host\(s\), and replicas"):
        create_topic(bootstrap, "copies", 1, {}, replication_factor=2)


def test_a_killed_worker_is_back_and_nothing_is_lost(host: Host) -> None:
    bootstrap = host.broker.bootstrap
    create_topic(bootstrap, "t", PARTITIONS, {})
    load = Load(bootstrap, "t")
    load.send(300)
    killed = host.pids()
    for number in (2, 1):
        os.kill(killed[number], signal.SIGKILL)
        load.send(300)
        until(
            lambda number=number: f"worker {number} is back" in host.broker.log_text(),
            f"worker {number} is not started again",
            PATIENCE_S,
        )
    load.send(300)
    load.finish()
    assert not set(killed.values()) & set(host.pids().values())
    assert stored(bootstrap, "t", load.sent) == load.acknowledged


def test_a_stop_is_clean_for_all_and_the_death_of_the_parent_ends_all(host: Host) -> None:
    bootstrap = host.broker.bootstrap
    create_topic(bootstrap, "t", PARTITIONS, {})
    load = Load(bootstrap, "t")
    load.send(100)
    load.finish()
    pids = host.pids()
    assert set(pids) == {1, 2}
    assert host.broker.stop(PATIENCE_S) == 0
    marks = [host.data_dir, host.data_dir / "workers" / "2"]
    assert all((path / ".kafka_cleanshutdown").is_file() for path in marks)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    host.broker.start()
    orphans = host.pids()
    host.broker.kill()
    until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans.values()),
        "workers outlive their parent",
        PATIENCE_S,
    )
    host.broker.start()
    assert stored(bootstrap, "t", 100) == load.acknowledged


def test_a_node_that_ran_alone_becomes_worker_1_where_it_lies(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Broker(data_dir=data_dir) as alone:
        create_topic(alone.bootstrap, "t", PARTITIONS, {})
        load = Load(alone.bootstrap, "t")
        load.send(100)
        load.finish()
    with Broker(data_dir=data_dir, workers=2, ready_timeout_s=PATIENCE_S) as both:
        assert stored(both.bootstrap, "t", 100) == load.acknowledged
        assert leaders(both.bootstrap, "t") == {1}
        create_topic(both.bootstrap, "new", PARTITIONS, {})
        assert leaders(both.bootstrap, "new") == NODES
    words = "has data of worker 2, which is node 1001: start with --workers 2"
    for fewer in (None, 1):
        with (
            pytest.raises(BrokerFailed, match=words),
            Broker(data_dir=data_dir, workers=fewer),
        ):
            pass


def test_what_cannot_be_is_told_before_anything_is_begun(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    data_dir = tmp_path / "data"
    with (
        closing(socket.create_server(("127.0.0.1", port))),
        pytest.raises(BrokerFailed, match="cannot be served: Address already in use"),
        Broker(data_dir=data_dir, port=port, workers=2),
    ):
        pass
    assert not data_dir.exists()


@pytest.fixture
def one_core() -> Iterator[None]:
    """This process, and what it starts, may use no other."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


def test_each_line_of_a_json_log_is_an_object_with_its_worker(
    tmp_path: Path, one_core: None
) -> None:
    settings = {"log.format": "json"}
    with Broker(settings, data_dir=tmp_path, workers=2, ready_timeout_s=PATIENCE_S) as broker:
        pass
    lines = [json.loads(line) for line in broker.log_text().splitlines()]
    assert "warning: 2 workers on 1 core(s)" in lines[0]["message"]
    stopped = [line.get("worker") for line in lines if line["message"] == "stopped"]
    assert stopped == [2, 1, None], "the controller is the last"
