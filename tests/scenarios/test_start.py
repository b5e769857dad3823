"""A broker's life as a process: start, stop, crash, and what stands in its way."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.testing import Broker, BrokerFailed, TopicNotCreated

TIMEOUT_S = 60
NEVER_IMPORTED = ("fastapi", "rich", "confluent_kafka", "prometheus_client", "pytest")


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker that a test may ill-treat."""
    with Broker() as own:
        yield own


def produce(broker: Broker, topic: str, values: list[bytes]) -> None:
    """Returns when every value is acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def consume(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, TIMEOUT_S)]
    finally:
        consumer.close()


def await_end(pid: int) -> bool:
    """Whether the process ends in time; it need not be a child of ours."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], TIMEOUT_S)[0])
    finally:
        os.close(process)


def test_starting_imports_nothing_that_only_commands_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with Broker() as broker:
        produce(broker, "orders", [b"one"])
        lines = broker.log_text().splitlines()
    imported = {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in lines
        if line.startswith("import time:")
    }
    assert "ottla" in imported
    assert imported.isdisjoint(NEVER_IMPORTED)


@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_it_cleanly(broker: Broker, signal_number: int, code: int) -> None:
    produce(broker, "orders", [b"one"])
    os.kill(broker.pid, signal_number)
    assert await_end(broker.pid)
    assert broker.exit_code == code
    assert "Traceback" not in broker.log_text()
    assert (broker.data_dir / ".kafka_cleanshutdown").exists()


def test_a_clean_stop_keeps_everything(broker: Broker) -> None:
    values = [b"%d" % number for number in range(100)]
    produce(broker, "orders", values)
    bootstrap = broker.bootstrap
    assert broker.stop() == 0
    broker.restart()
    assert broker.bootstrap == bootstrap
    assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
    assert consume(broker, "orders", len(values)) == values


def test_a_crash_keeps_what_was_acknowledged(broker: Broker) -> None:
    values: list[bytes] = []
    for life in range(3):
        more = [b"%d of life %d" % (number, life) for number in range(50)]
        produce(broker, "orders", more)
        values += more
        broker.kill()
        assert broker.exit_code == -signal.SIGKILL
        broker.restart()
    assert consume(broker, "orders", len(values)) == values


def test_it_dies_with_its_parent() -> None:
    script = """
import sys
from ottla.testing import Broker
with Broker() as broker:
    print(broker.pid, flush=True)
    sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert await_end(pid)


def test_a_data_directory_has_one_broker(broker: Broker) -> None:
    with pytest.raises(BrokerFailed) as refused, Broker(data_dir=broker.data_dir):
        pass
    assert "Traceback" not in str(refused.value)
    assert str(broker.data_dir) in str(refused.value)
    produce(broker, "orders", [b"still here"])


def test_a_taken_port_stops_the_start_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BrokerFailed) as refused, Broker(port=port):
            pass
    assert f"127.0.0.1:{port}" in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_an_unknown_setting_stops_the_start_and_names_the_nearest() -> None:
    with pytest.raises(BrokerFailed, match=r"num\.partitions") as refused:
        Broker({"num.partition": 3}).__enter__()
    assert "Traceback" not in str(refused.value)


def test_the_temporary_directory_goes_and_a_given_one_stays(tmp_path: Path) -> None:
    with Broker() as broker:
        home = broker.data_dir.parent
        assert home.is_dir()
    assert not home.exists()
    assert broker.log_text()
    with Broker(data_dir=tmp_path / "mine"):
        pass
    assert (tmp_path / "mine" / "meta.properties").exists()


def test_settings_in_the_users_environment_do_not_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTTLA_NUM_PARTITIONS", "nonsense")
    with Broker() as broker:
        assert broker.is_running


def test_a_broker_that_hangs_is_killed_and_told(broker: Broker) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    with pytest.raises(BrokerFailed, match="did not stop"):
        broker.stop(timeout_s=0.1)
    assert broker.exit_code == -signal.SIGKILL


def test_a_broker_that_is_not_ready_in_time_leaves_nothing_behind() -> None:
    broker = Broker(ready_timeout_s=0)
    with pytest.raises(BrokerFailed, match="not ready"):
        broker.__enter__()
    assert not broker.is_running
    with pytest.raises(BrokerFailed):
        _ = broker.data_dir


def test_a_topic_that_cannot_be_created_says_why(ottla_broker: Broker, ottla_topic: str) -> None:
    with pytest.raises(TopicNotCreated, match="error 36"):
        ottla_broker.create_topic(ottla_topic)
    with pytest.raises(TopicNotCreated, match=r"error 17 .+"):
        ottla_broker.create_topic("no/slashes")
    with pytest.raises(TopicNotCreated, match="error 37"):
        ottla_broker.create_topic("none", partitions=0)


def test_http_can_be_switched_off() -> None:
    with Broker({"http.listener": ""}) as broker, pytest.raises(BrokerFailed, match="without"):
        _ = broker.http
