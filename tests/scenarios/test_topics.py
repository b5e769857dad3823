"""Topics and settings as people manage them: with confluent-kafka's admin client."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ottla.testing import Broker
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from raw_client import RawClient

TIMEOUT_S = 20


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def admin(ottla_broker: Broker) -> AdminClient:
    return admin_of(ottla_broker)


def wait(futures):
    """The one result of a call for one thing."""
    [future] = futures.values()
    return future.result(TIMEOUT_S)


def code_of(failure: pytest.ExceptionInfo[KafkaException]) -> tuple[int, str]:
    error = failure.value.args[0]
    return error.code(), error.str()


def settings_of(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    return wait(admin.describe_configs([resource]))


def alter(admin: AdminClient, resource_type: ResourceType, name: str, *changes) -> None:
    entries = [
        ConfigEntry(setting, value, incremental_operation=operation)
        for setting, value, operation in changes
    ]
    resource = ConfigResource(resource_type, name, incremental_configs=entries)
    wait(admin.incremental_alter_configs([resource]))


def consumed(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, TIMEOUT_S)
        return [message.value() for message in messages]
    finally:
        consumer.close()


def produced(broker: Broker, topic: str, *values: bytes, **options) -> list[KafkaError | None]:
    outcomes: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, **options})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    return outcomes


def test_a_topic_is_created_listed_grown_and_deleted(admin, ottla_broker):
    wait(admin.create_topics([NewTopic("life", 2, 1)]))
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics["life"].partitions) == 2
    wait(admin.create_partitions([NewPartitions("life", 5)]))
    topic = admin.list_topics("life", timeout=TIMEOUT_S).topics["life"]
    assert sorted(topic.partitions) == [0, 1, 2, 3, 4]
    assert {partition.leader for partition in topic.partitions.values()} == {1}
    wait(admin.delete_topics(["life"]))
    assert "life" not in admin.list_topics(timeout=TIMEOUT_S).topics


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        (NewTopic("bad name", 1, 1), KafkaError.TOPIC_EXCEPTION, "bad name"),
        (NewTopic("rf", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR, "1 broker(s)"),
        (NewTopic("many", 10_001, 1), KafkaError.INVALID_PARTITIONS, "max.partitions.per.topic"),
        (
            NewTopic("typo", 1, 1, config={"retention.mss": "1"}),
            KafkaError.INVALID_CONFIG,
            "retention.ms?",
        ),
        (
            NewTopic("far", 1, replica_assignment=[[7]]),
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
            "broker 7",
        ),
    ],
    ids=["name", "replication", "partitions", "setting", "assignment"],
)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(admin, topic, code, words):
    with pytest.raises(KafkaException) as failure:
        wait(admin.create_topics([topic]))
    assert code_of(failure)[0] == code
    assert words in code_of(failure)[1]


def test_existing_and_missing_topics_are_told_apart(admin, ottla_topic):
    with pytest.raises(KafkaException) as failure:
        wait(admin.create_topics([NewTopic(ottla_topic, 1, 1)]))
    assert code_of(failure)[0] == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as failure:
        wait(admin.delete_topics(["never-was"]))
    assert code_of(failure)[0] == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_validated_topic_is_not_created(admin):
    wait(admin.create_topics([NewTopic("dry", 3, 1)], validate_only=True))
    assert "dry" not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_topics_settings_are_changed_one_by_one(admin, ottla_topic):
    resource = ConfigResource(ResourceType.TOPIC, ottla_topic)
    assert settings_of(admin, resource)["retention.ms"].is_default
    alter(
        admin,
        ResourceType.TOPIC,
        ottla_topic,
        ("retention.ms", "5000", AlterConfigOpType.SET),
        ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    )
    settings = settings_of(admin, resource)
    assert settings["retention.ms"].value == "5000"
    assert settings["cleanup.policy"].value == "delete,compact"
    alter(admin, ResourceType.TOPIC, ottla_topic, ("retention.ms", None, AlterConfigOpType.DELETE))
    assert settings_of(admin, resource)["retention.ms"].value == "604800000"


def test_a_changed_limit_is_in_force_at_once(admin, ottla_broker, ottla_topic):
    alter(
        admin, ResourceType.TOPIC, ottla_topic, ("max.message.bytes", "200", AlterConfigOpType.SET)
    )
    [small] = produced(ottla_broker, ottla_topic, b"small")
    [large] = produced(ottla_broker, ottla_topic, b"x" * 1_000)
    assert small is None
    assert large.code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_brokers_settings_say_which_of_them_can_change(admin):
    settings = settings_of(admin, ConfigResource(ResourceType.BROKER, "1"))
    assert settings["listeners"].is_read_only
    assert not settings["log.level"].is_read_only
    with pytest.raises(KafkaException) as failure:
        alter(admin, ResourceType.BROKER, "1", ("node.id", "2", AlterConfigOpType.SET))
    assert "node.id" in code_of(failure)[1]


def test_the_cluster_is_described(admin, ottla_broker):
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert len(cluster.cluster_id) == 22
    assert [node.id for node in cluster.nodes] == [cluster.controller.id] == [1]
    assert f"{cluster.nodes[0].host}:{cluster.nodes[0].port}" == ottla_broker.bootstrap


def test_producing_to_a_topic_that_does_not_exist_creates_it(ottla_broker):
    assert produced(ottla_broker, "made-by-producing", b"hello") == [None]
    assert consumed(ottla_broker, "made-by-producing", 1) == [b"hello"]


def test_a_recreated_topic_has_nothing_of_the_old_one(admin, ottla_broker):
    for value in (b"old", b"new"):
        wait(admin.create_topics([NewTopic("again", 1, 1)]))
        assert produced(ottla_broker, "again", value) == [None]
        assert consumed(ottla_broker, "again", 1) == [value]
        wait(admin.delete_topics(["again"]))


def test_without_auto_creation_an_unknown_topic_stays_unknown(ottla_broker_factory):
    broker = ottla_broker_factory(auto_create_topics_enable=False)
    options = {"message.timeout.ms": 2_000, "topic.metadata.propagation.max.ms": 0}
    [error] = produced(broker, "nobody", b"lost", **options)
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert admin_of(broker).list_topics(timeout=TIMEOUT_S).topics == {}


class TestRestarts:
    def partition_facts(self, broker: Broker, topic: str) -> tuple[bytes, list[int]]:
        with RawClient(broker.bootstrap) as client:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
            )
            [found] = client.ask(request, 12).topics
            return found.topic_id, [partition.leader_epoch for partition in found.partitions]

    def producer_id(self, broker: Broker) -> int:
        with RawClient(broker.bootstrap) as client:
            reply = client.ask(InitProducerIdRequest(transactional_id=None), 5)
            assert (reply.error_code, reply.producer_epoch) == (0, 0)
            return reply.producer_id

    @pytest.mark.parametrize("violently", [False, True], ids=["stop", "kill -9"])
    def test_metadata_survives_and_every_partition_has_a_new_leader_epoch(
        self, ottla_broker_factory, violently
    ):
        broker = ottla_broker_factory()
        admin = admin_of(broker)
        wait(admin.create_topics([NewTopic("kept", 3, 1, config={"segment.ms": "9999"})]))
        wait(admin.create_topics([NewTopic("gone", 1, 1)]))
        wait(admin.delete_topics(["gone"]))
        wait(admin.create_partitions([NewPartitions("kept", 4)]))
        cluster_id = admin.describe_cluster().result(TIMEOUT_S).cluster_id
        topic_id, epochs = self.partition_facts(broker, "kept")
        assert epochs == [0] * 4
        producer_ids = {self.producer_id(broker), self.producer_id(broker)}
        assert len(producer_ids) == 2
        for _ in range(2):
            broker.kill() if violently else broker.stop()
            broker.start()
            admin = admin_of(broker)
            assert list(admin.list_topics(timeout=TIMEOUT_S).topics) == ["kept"]
            same_id, later = self.partition_facts(broker, "kept")
            assert same_id == topic_id
            assert all(new > old for new, old in zip(later, epochs, strict=True))
            epochs = later
            assert admin.describe_cluster().result(TIMEOUT_S).cluster_id == cluster_id
            settings = settings_of(admin, ConfigResource(ResourceType.TOPIC, "kept"))
            assert settings["segment.ms"].value == "9999"
            new = self.producer_id(broker)
            assert new not in producer_ids
            producer_ids.add(new)
