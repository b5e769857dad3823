"""The pytest plugin in somebody else's project, run as that project would run it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ottla.testing import Broker

PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
TIMEOUT_S = 120


def run_project(project: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (project / "test_mine.py").write_text(tests)
    return subprocess.run(
        [*PYTEST, *options], cwd=project, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def test_the_plugin_imports_only_the_standard_library_and_pytest() -> None:
    script = """
import sys, pytest
before = set(sys.modules)
import ottla.testing.plugin
print(*(set(sys.modules) - before))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    imported = {name for name in result.stdout.split() if not name.startswith("ottla.testing")}
    strangers = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert strangers == {"ottla"}, result.stderr


PRODUCE_AND_CONSUME = """
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

def test_what_is_produced_is_consumed(ottla_broker, ottla_topic):
    producer = Producer({"bootstrap.servers": ottla_broker.bootstrap})
    producer.produce(ottla_topic, value=b"hello")
    assert producer.flush(20) == 0
    consumer = Consumer({
        "bootstrap.servers": ottla_broker.bootstrap, "group.id": "mine",
        "auto.offset.reset": "earliest",
    })
    consumer.subscribe([ottla_topic])
    message = consumer.poll(20)
    consumer.close()
    assert message.error() is None
    assert message.value() == b"hello"

def partitions(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    return len(admin.list_topics(topic, timeout=20).topics[topic].partitions)

def test_a_topic_has_one_partition(ottla_broker, ottla_topic):
    assert partitions(ottla_broker, ottla_topic) == 1

@pytest.mark.ottla_topic(partitions=3, configs={"cleanup.policy": "compact"})
def test_a_topic_has_as_many_partitions_as_it_is_marked_with(ottla_broker, ottla_topic):
    assert partitions(ottla_broker, ottla_topic) == 3

def first_offset(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    offsets = []
    producer.produce(topic, b"first", on_delivery=lambda _, m: offsets.append(m.offset()))
    assert producer.flush(20) == 0
    return offsets

@pytest.mark.parametrize("odd", ["a b/c"])
class TestOne:
    def test_each_test_has_a_topic_of_its_own(self, ottla_broker, ottla_topic, odd):
        assert first_offset(ottla_broker, ottla_topic) == [0]

class TestTwo(TestOne):
    pass

def test_further_brokers_have_their_own_settings(ottla_broker, ottla_broker_factory):
    other = ottla_broker_factory(num_partitions=4, auto_create_topics_enable=True)
    assert other.bootstrap != ottla_broker.bootstrap
    producer = Producer({"bootstrap.servers": other.bootstrap})
    producer.produce("made-by-itself", b"x")
    assert producer.flush(20) == 0
    assert partitions(other, "made-by-itself") == 4
"""


def test_a_project_tests_its_producers_and_consumers(tmp_path: Path) -> None:
    result = run_project(tmp_path, PRODUCE_AND_CONSUME, "--strict-markers")
    assert "6 passed" in result.stdout, result.stdout + result.stderr


def test_a_failing_test_shows_the_brokers_log(tmp_path: Path) -> None:
    tests = """
def test_fails(ottla_broker): assert False
def test_fails_too(ottla_broker_factory):
    broker = ottla_broker_factory()
    broker.kill()
    assert False
def test_passes(ottla_broker): pass
"""
    result = run_project(tmp_path, tests)
    assert "2 failed, 1 passed" in result.stdout, result.stdout + result.stderr
    assert result.stdout.count("log of ottla broker") == 2
    assert "exit code -9" in result.stdout


def test_every_xdist_worker_has_a_broker_of_its_own(tmp_path: Path) -> None:
    tests = """
import pytest
@pytest.mark.parametrize("number", range(6))
def test_it(number, ottla_broker, ottla_topic, worker_id, tmp_path_factory):
    with open("seen", "a") as seen:
        print(worker_id, ottla_broker.pid, file=seen)
"""
    result = run_project(tmp_path, tests, "-n", "2")
    assert "6 passed" in result.stdout, result.stdout + result.stderr
    brokers_by_worker = {
        tuple(line.split()) for line in (tmp_path / "seen").read_text().splitlines()
    }
    workers = {worker for worker, _ in brokers_by_worker}
    brokers = {broker for _, broker in brokers_by_worker}
    assert len(brokers_by_worker) == len(workers) == len(brokers) == 2


def test_the_sessions_broker_can_be_given_settings(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("""
import pytest
@pytest.fixture(scope="session")
def ottla_broker_settings(): return {"num.partitions": "none at all"}
""")
    result = run_project(tmp_path, "def test_it(ottla_broker): pass")
    assert "1 error" in result.stdout
    assert "num.partitions" in result.stdout


def test_a_project_that_does_not_use_the_fixtures_pays_nothing(tmp_path: Path) -> None:
    tests = """
import sys
def test_it(): assert not {"confluent_kafka", "uvloop", "ottla.broker"} & set(sys.modules)
"""
    result = run_project(tmp_path, tests)
    assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_our_own_fixtures_are_the_shipped_ones(ottla_broker: Broker, ottla_topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": ottla_broker.bootstrap})
    topics = admin.list_topics(timeout=TIMEOUT_S).topics
    assert list(topics[ottla_topic].partitions) == [0]


def test_listeners_and_directories_given_to_the_factory_are_honoured(tmp_path: Path) -> None:
    tests = """
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from ottla.testing import BrokerFailed

def test_directories(ottla_broker_factory, tmp_path):
    both = [tmp_path / "a", tmp_path / "b"]
    broker = ottla_broker_factory(log_dirs=both)
    assert broker.data_dir == both[0]
    assert all((path / "meta.properties").exists() for path in both)

def test_a_directory_below_the_working_directory(ottla_broker_factory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broker = ottla_broker_factory(log_dir="here")
    assert broker.data_dir == tmp_path / "here"
    assert (tmp_path / "here" / "meta.properties").exists()

def test_listeners(ottla_broker_factory):
    broker = ottla_broker_factory(
        listeners="MINE://127.0.0.1:0,OTHER://127.0.0.1:0",
        listener_security_protocol_map="MINE:PLAINTEXT,OTHER:PLAINTEXT",
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.describe_configs([ConfigResource("broker", "1")]).values()
    assert future.result(20)["listeners"].value.startswith("MINE://127.0.0.1:")
    first = broker.bootstrap
    broker.restart()
    assert broker.bootstrap == first

def test_two_places_for_the_data(ottla_broker_factory, tmp_path):
    with pytest.raises(BrokerFailed, match="data_dir .* is not among log.dirs"):
        ottla_broker_factory(log_dirs="a,b", data_dir=tmp_path)
"""
    result = run_project(tmp_path, tests)
    assert "4 passed" in result.stdout, result.stdout + result.stderr


def test_a_killed_run_leaves_nothing_behind_after_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orphan is stopped, so that it cannot notice by itself that its parent is gone."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    tests = """
import os, signal
def test_it(ottla_broker):
    with open("pid", "w") as file:
        print(ottla_broker.pid, file=file)
    os.kill(ottla_broker.pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_project(tmp_path, tests).returncode == -signal.SIGKILL
    orphan = int((tmp_path / "pid").read_text())
    process = os.pidfd_open(orphan)
    assert len(list(scratch.glob("ottla-test-*"))) == 1
    with Broker() as other:
        result = run_project(tmp_path, "def test_it(ottla_broker): pass")
        assert "1 passed" in result.stdout, result.stdout + result.stderr
        assert select.select([process], [], [], TIMEOUT_S)[0], "the orphan still runs"
        assert other.is_running, "the brokers of others are left alone"
    os.close(process)
    assert list(scratch.glob("ottla-test-*")) == []


def test_a_shared_broker_that_died_is_named_in_the_tests_that_meet_it(tmp_path: Path) -> None:
    tests = """
import os, signal
def test_kills_it(ottla_broker):
    os.kill(ottla_broker.pid, signal.SIGKILL)
    ottla_broker._process.wait()
def test_meets_it(ottla_broker): raise AssertionError("is not even begun")
def test_wants_a_topic(ottla_topic): raise AssertionError("is not even begun")
def test_has_its_own(ottla_broker_factory): ottla_broker_factory().kill()
def test_stops_its_own(ottla_broker_factory): ottla_broker_factory().stop()
"""
    result = run_project(tmp_path, tests)
    assert "3 passed, 2 errors" in result.stdout, result.stdout + result.stderr
    assert result.stdout.count("has died (exit code -9); its log:") >= 2
    assert "is not even begun" not in result.stdout.replace('raise AssertionError("is', "")
