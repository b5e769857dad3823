"""Kafka's own files: what they say that Ottla does not have is told, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.config import BrokerConfig, idle_names, load
from ottla.errors import InvalidConfig

# The keys of config/server.properties as Kafka 4 ships it, and with it a few that people add.
SERVER = """\
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=4
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
replica.lag.time.max.ms=30000
group.consumer.session.timeout.ms=45000
ssl.keystore.location=/etc/kafka/keystore.jks
"""


def loaded(
    tmp_path: Path, content: str, *sets: str, flags: dict[str, str] | None = None
) -> tuple[BrokerConfig, list[str]]:
    file = tmp_path / "server.properties"
    file.write_text(content)
    config, origins = load(str(file), sets, {}, flags)
    return config, idle_names(origins)


def refusal(tmp_path: Path, *lines: str, without: str = "\0") -> str:
    kept = [line for line in SERVER.splitlines() if not line.startswith(without)]
    with pytest.raises(InvalidConfig) as caught:
        loaded(tmp_path, "\n".join([*kept, *lines]))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_of_kafka_loads_with_a_listener_for_the_controller(tmp_path: Path) -> None:
    config, idle = loaded(tmp_path, SERVER)
    assert [str(listener) for listener in config.client_listeners()] == ["PLAINTEXT://:9092"]
    assert [str(each) for each in config.controller_listeners()] == ["CONTROLLER://:9093"]
    assert [str(listener) for listener in config.advertised()] == ["PLAINTEXT://localhost:9092"]
    assert (config.node_id, config.num_partitions) == (7, 4)
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)
    assert idle == [
        "group.consumer.session.timeout.ms",
        "inter.broker.listener.name",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "replica.lag.time.max.ms",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "ssl.keystore.location",
    ]


def test_a_flag_wins_over_the_listeners_of_a_kafka_file(tmp_path: Path) -> None:
    flags = {"listeners": "127.0.0.1:0", "advertised.listeners": "127.0.0.1:0"}
    config, _ = loaded(tmp_path, SERVER, flags=flags)
    assert [str(listener) for listener in config.bound()] == ["PLAINTEXT://127.0.0.1:0"]


def test_a_single_voter_is_this_node(tmp_path: Path) -> None:
    config, idle = loaded(tmp_path, SERVER + "controller.quorum.voters=7@localhost:9093\n")
    assert "controller.quorum.voters" not in idle
    assert config.voters() == ((7, ("localhost", 9093)),)


def test_several_voters_are_told_by_their_ids(tmp_path: Path) -> None:
    lines = "node.id=2\ncontroller.quorum.voters=1@a:9092, 2@b:9092, 3@[::1]:9092\n"
    config, _ = loaded(tmp_path, lines)
    assert [voter.node_id for voter in config.voters()] == [1, 2, 3]
    assert [str(voter.address) for voter in config.voters()] == ["a:9092", "b:9092", "[::1]:9092"]


def test_no_voter_is_named_twice() -> None:
    with pytest.raises(InvalidConfig, match=r"controller\.quorum\.voters names node 1 twice"):
        load(sets=["controller.quorum.voters=1@a:9092,1@b:9092"])


def test_a_configuration_without_foreign_names_has_nothing_idle() -> None:
    assert idle_names(load(sets=["num.partitions=3"])[1]) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("process.roles=controller", "listeners has PLAINTEXT, which is for clients"),
        ("process.roles=broker", "CONTROLLER, which is among this broker's own listeners"),
        ("process.roles=broker,worker", "process.roles is 'broker,worker', but must be one or"),
        ("process.roles=", "process.roles is '', but must be one or more of broker, controller"),
        ("process.roles=broker,broker", "process.roles names a role twice"),
        ("controller.quorum.voters=7@a:99999", "controller.quorum.voters is 'a:99999'"),
        (
            "controller.quorum.voters=1@localhost:9093",
            "controller.quorum.voters does not name node.id=7",
        ),
        ("controller.quorum.voters=localhost", "must be id@host:port"),
        ("listeners=SASL_SSL://:9092,CONTROLLER://:9093", "which speaks SASL_SSL"),
        ("listeners=CONTROLLER://:9093", "listeners has only CONTROLLER"),
        ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "access"),
        ("remote.log.storage.system.enable=true", "remote.log.storage.system.enable is 'true'"),
        ("create.topic.policy.class.name=Mine", "create.topic.policy.class.name is 'Mine'"),
        ("zookeeper.connect=localhost:2181", "zookeeper.connect names ZooKeeper"),
        ("num.partition=3", "Did you mean num.partitions?"),
    ],
)
def test_what_cannot_be_honoured_stops_in_one_line(tmp_path: Path, line: str, words: str) -> None:
    refused = refusal(tmp_path, line)
    assert words in refused
    assert "server.properties" in refused


def test_a_listener_of_another_protocol_is_refused_by_its_name(tmp_path: Path) -> None:
    lines = refusal(tmp_path, "listeners=SSL://:9092", without="listener.security")
    assert "names SSL, which speaks SSL" in lines


@pytest.mark.parametrize(
    "line", ["authorizer.class.name=", "remote.log.storage.system.enable=false"]
)
def test_what_asks_for_nothing_is_only_told(tmp_path: Path, line: str) -> None:
    assert line.partition("=")[0] in loaded(tmp_path, SERVER + line)[1]


BROKER = """\
process.roles=broker
node.id=7
controller.quorum.bootstrap.servers=c1:9093,c2:9093
listeners=PLAINTEXT://127.0.0.1:9092
controller.listener.names=CONTROLLER
"""
CONTROLLER = """\
process.roles=controller
node.id=7
controller.quorum.voters=7@c1:9093,8@c2:9093
listeners=CONTROLLER://:9093
controller.listener.names=CONTROLLER
"""


def test_a_broker_alone_asks_the_controllers_and_serves_clients(tmp_path: Path) -> None:
    config, idle = loaded(tmp_path, BROKER)
    assert (config.is_broker, config.is_controller, idle) == (True, False, [])
    assert [str(address) for address in config.bootstrap_servers()] == ["c1:9093", "c2:9093"]
    assert [str(each) for each in config.advertised()] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.controller_listeners() == ()


def test_a_controller_alone_serves_no_clients(tmp_path: Path) -> None:
    config, idle = loaded(tmp_path, CONTROLLER)
    assert (config.is_broker, config.is_controller, idle) == (False, True, [])
    assert (config.advertised(), config.client_listeners()) == ((), ())


@pytest.mark.parametrize(
    ("content", "lines", "words"),
    [
        (BROKER, ["controller.quorum.bootstrap.servers="], "nothing says where the controllers"),
        (BROKER, ["controller.quorum.bootstrap.servers=c1"], "must be host:port"),
        (BROKER, ["controller.listener.names="], "controller.listener.names is empty"),
        (
            BROKER,
            ["controller.quorum.voters=7@c1:9093"],
            "names node.id=7, which process.roles makes a broker and no controller",
        ),
        (
            BROKER,
            ["advertised.listeners=CONTROLLER://a:9093"],
            "CONTROLLER, which is among this broker's own listeners",
        ),
        (CONTROLLER, ["controller.listener.names="], "controller.listener.names is empty"),
        (
            CONTROLLER,
            ["listeners=PLAINTEXT://:9092,CONTROLLER://:9093"],
            "listeners has PLAINTEXT, which is for clients",
        ),
        (
            CONTROLLER,
            ["controller.listener.names=CONTROLLER,SECOND"],
            "SECOND, which is not among the listeners (CONTROLLER); add SECOND://HOST:PORT",
        ),
        (
            CONTROLLER,
            ["controller.quorum.voters=1@c1:9093,8@c2:9093"],
            "does not name node.id=7, which process.roles makes a controller",
        ),
        (
            CONTROLLER,
            ["process.roles=broker,controller"],
            "listeners has only CONTROLLER, which controller.listener.names keeps",
        ),
    ],
)
def test_roles_and_what_does_not_go_with_them(
    tmp_path: Path, content: str, lines: list[str], words: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        loaded(tmp_path, "\n".join([content, *lines]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
