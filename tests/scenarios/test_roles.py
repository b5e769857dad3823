"""Brokers that are no controllers, and controllers that are no brokers, each its own process."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from ottla.broker.network.router import APIS, Api
from ottla.errors import ErrorCode
from ottla.testing import Broker, Cluster
from ottla.testing.ports import free_ports
from ottla.types import METADATA_TOPIC
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumPartitionResult,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest
from ottla.wire.schema import Message
from raw_client import RawClient
from scenarios.polling import until

BROKERS, CONTROLLERS = {1, 2}, {3, 4, 5}
WAIT_S = 60.0
DESCRIBE_BROKERS, DESCRIBE_CONTROLLERS = 1, 2
PRODUCE, FETCH, VOTE, REGISTRATION, HEARTBEAT = 0, 1, 52, 62, 63


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, controllers=3) as running:
        yield running


def described(address: str, kind: int) -> DescribeClusterResponse:
    with RawClient(address) as client:
        reply: DescribeClusterResponse = client.ask(DescribeClusterRequest(endpoint_type=kind), 1)
    return reply


def quorum(address: str) -> DescribeQuorumPartitionResult:
    wanted = DescribeQuorumTopic(METADATA_TOPIC, [DescribeQuorumPartition(0)])
    with RawClient(address) as client:
        reply = client.ask(DescribeQuorumRequest([wanted]), 1)
    result: DescribeQuorumPartitionResult = reply.topics[0].partitions[0]
    return result


def apis_of(address: str, software: str = "test") -> set[int]:
    with RawClient(address) as client:
        reply = client.ask(ApiVersionsRequest(software, "1"), 3)
    return {each.api_key for each in reply.api_keys}


def test_each_listener_describes_its_own_kind(cluster: Cluster) -> None:
    def lists(node_id: int, kind: int, wanted: set[int]) -> bool:
        found = described(cluster[node_id].bootstrap, kind)
        return {node.broker_id for node in found.brokers} == wanted

    until(lambda: lists(1, DESCRIBE_BROKERS, BROKERS), "not all brokers are told")
    until(lambda: lists(3, DESCRIBE_CONTROLLERS, CONTROLLERS), "not all controllers are told")
    controllers = described(cluster[3].bootstrap, DESCRIBE_CONTROLLERS)
    assert controllers.controller_id in CONTROLLERS
    assert {f"{node.host}:{node.port}" for node in controllers.brokers} == {
        cluster[node_id].bootstrap for node_id in CONTROLLERS
    }
    for address, kind in (
        (cluster[1].bootstrap, DESCRIBE_CONTROLLERS),
        (cluster[3].bootstrap, DESCRIBE_BROKERS),
    ):
        assert described(address, kind).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_controllers_serve_what_is_theirs_and_nothing_else(cluster: Cluster) -> None:
    broker, controller = cluster[1].bootstrap, cluster[3].bootstrap
    assert {PRODUCE, FETCH} <= apis_of(broker, "ottla-node")
    assert not {VOTE, REGISTRATION, HEARTBEAT} & apis_of(broker, "ottla-node")
    assert {FETCH, VOTE, REGISTRATION, HEARTBEAT} <= apis_of(controller, "ottla-node")
    assert PRODUCE not in apis_of(controller)
    with RawClient(controller) as client, pytest.raises(ConnectionError):
        client.ask(MetadataRequest(topics=None), 9)


def test_brokers_follow_the_metadata_log_without_a_vote(cluster: Cluster) -> None:
    """Asked at a broker, which forwards it."""

    def observers() -> set[int]:
        return {observer.replica_id for observer in quorum(cluster[1].bootstrap).observers}

    until(lambda: observers() == BROKERS, "not all brokers observe")
    voters = quorum(cluster[1].bootstrap).current_voters
    assert {voter.replica_id for voter in voters} == CONTROLLERS


def test_every_request_for_the_controller_is_forwarded(cluster: Cluster) -> None:
    """By librdkafka, to brokers that decide nothing themselves."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def done(futures: dict[str, object]) -> None:
        for future in futures.values():
            future.result(WAIT_S)  # type: ignore[attr-defined]

    done(admin.create_topics([NewTopic("managed", 1, 2)]))
    done(admin.create_partitions([NewPartitions("managed", 3)]))
    retention = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, "managed", incremental_configs=[retention])
    done(admin.incremental_alter_configs([topic]))

    def is_altered() -> bool:
        (configs,) = admin.describe_configs([ConfigResource("topic", "managed")]).values()
        return bool(configs.result(WAIT_S)["retention.ms"].value == "1000")

    until(is_altered, "not altered")
    done(admin.delete_topics(["managed"]))
    until(lambda: "managed" not in admin.list_topics(timeout=WAIT_S).topics, "not deleted")


@pytest.mark.parametrize(
    "api", [api for api in APIS.values() if api.by_controller], ids=lambda api: api.name
)
def test_whatever_the_controller_answers_a_broker_has_it_answer(cluster: Cluster, api: Api) -> None:
    """Also what no client library sends. An empty request is answered as the controller does."""
    messages = importlib.import_module(f"ottla.wire.messages.{api.module}")
    request: Message = getattr(messages, f"{api.name}Request")()
    leader = quorum(cluster[1].bootstrap).leader_id

    def answer(node_id: int) -> Message:
        with RawClient(cluster[node_id].bootstrap) as client:
            reply: Message = client.ask(request, api.last)
        return reply

    until(lambda: answer(1) == answer(leader), "the answers differ")
    assert getattr(answer(1), "error_code", ErrorCode.NONE) != ErrorCode.NOT_CONTROLLER


def produced(cluster: Cluster, topic: str, values: list[str]) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0}
    producer = Producer({**settings, "enable.idempotence": True})
    failed: list[str] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(str(error)))
    assert producer.flush(WAIT_S) == 0
    assert set(failed) <= {"None"}


def consumed(cluster: Cluster, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []

    def has_all() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return len(found) >= count

    until(has_all, f"{topic} does not give {count} messages", patience_s=WAIT_S)
    consumer.close()
    return found


def known_brokers(address: str) -> set[int]:
    """Fenced ones included."""
    with RawClient(address) as client:
        reply = client.ask(DescribeClusterRequest(include_fenced_brokers=True), 2)
    return {node.broker_id for node in reply.brokers}


def test_writes_go_on_without_the_active_controller_and_without_a_broker(cluster: Cluster) -> None:
    cluster.create_topic("orders", 2, replication_factor=2)
    produced(cluster, "orders", ["before"])
    leader = quorum(cluster[1].bootstrap).leader_id
    cluster[leader].kill()
    produced(cluster, "orders", ["without its controller"])
    until(lambda: quorum(cluster[1].bootstrap).leader_id != leader, "no other leads")
    cluster.create_topic("later", 1, replication_factor=2)
    cluster[2].kill()
    produced(cluster, "orders", ["without a broker"])
    produced(cluster, "later", ["made meanwhile"])
    with RawClient(cluster[1].bootstrap) as client:
        reply = client.ask(UnregisterBrokerRequest(2), 0)
        assert reply.error_code == ErrorCode.NONE
    until(lambda: 2 not in known_brokers(cluster[1].bootstrap), "a forgotten broker is told")
    cluster[leader].start()
    cluster[2].start()
    until(lambda: 2 in known_brokers(cluster[1].bootstrap), "it is not known again")
    told = ["before", "without a broker", "without its controller"]
    assert sorted(consumed(cluster, "orders", 3)) == told
    assert consumed(cluster, "later", 1) == ["made meanwhile"]


def test_a_broker_finds_the_leader_by_asking_and_the_offsets_of_groups_move_in(
    tmp_path: Path,
) -> None:
    """controller.quorum.bootstrap.servers: of the addresses one answers, and no id is known."""
    nowhere, where = free_ports(2)
    settings = {
        "node.id": 9,
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{where}",
        "controller.listener.names": "CONTROLLER",
        "offsets.topic.num.partitions": 3,
        "offsets.topic.replication.factor": 2,
    }
    with Broker(settings) as first:
        first.create_topic("things")
        commit(first.bootstrap)
        assert offsets_replicas(first.bootstrap) == {(9,)}
        cluster_id = described(f"127.0.0.1:{where}", DESCRIBE_CONTROLLERS).cluster_id
        settings = {
            "node.id": 1,
            "process.roles": "broker",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{nowhere},127.0.0.1:{where}",
        }
        with Broker(settings, data_dir=tmp_path / "1", cluster_id=cluster_id) as second:
            until(lambda: len(described(second.bootstrap, 1).brokers) == 2, "not both are told")
            admin = AdminClient({"bootstrap.servers": second.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic("both", 1, 2)])["both"].result(WAIT_S)
            until(
                lambda: offsets_replicas(second.bootstrap) == {(1, 9)},
                "the offsets of groups have no second replica in sync",
                patience_s=WAIT_S,
            )


def commit(bootstrap: str) -> None:
    """A group comes into being, and with it the topic of its offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "early", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("things", 0, 0)], asynchronous=False)
    consumer.close()


def offsets_replicas(bootstrap: str) -> set[tuple[int, ...]]:
    """The replicas in sync of the partitions that hold committed offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = admin.list_topics("__consumer_offsets", timeout=WAIT_S).topics
    partitions = topics["__consumer_offsets"].partitions.values()
    return {tuple(sorted(partition.isrs)) for partition in partitions}
