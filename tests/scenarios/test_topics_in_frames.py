"""What the admin APIs promise in each of their versions, seen in raw frames."""

from __future__ import annotations

import resource
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.wire.messages import alter_configs, incremental_alter_configs
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from raw_client import RawClient

TOPIC, BROKER = 2, 4
RECOVERY_S_MAX = 20


@pytest.fixture
def client(ottla_broker: Broker) -> Iterator[RawClient]:
    with RawClient(ottla_broker.bootstrap) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"t-{secrets.token_hex(6)}"


def create(client, version, *names, partitions=1, configs=None):
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
        )
        for name in names
    ]
    return client.ask(CreateTopicsRequest(topics=topics), version).topics


def metadata(client, *names, version=12, auto_create=False):
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=auto_create,
    )
    return client.ask(request, version).topics


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics(client, name, version):
    good, bad = create(client, version, name, "bad name", partitions=2)
    assert (good.name, good.error_code) == (name, ErrorCode.NONE)
    assert (bad.error_code, bool(bad.error_message)) == (ErrorCode.INVALID_TOPIC_EXCEPTION, True)
    if version >= 5:
        assert (good.num_partitions, good.replication_factor) == (2, 1)
        assert {entry.name for entry in good.configs} >= {"retention.ms", "cleanup.policy"}
    [found] = metadata(client, name)
    assert len(found.partitions) == 2
    if version >= 7:
        assert good.topic_id == found.topic_id


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics(client, name, version):
    create(client, 7, name)
    if version < 6:
        request = DeleteTopicsRequest(topic_names=["nobody", name])
    else:
        states = [DeleteTopicState(name="nobody"), DeleteTopicState(name=name)]
        request = DeleteTopicsRequest(topics=states)
    results = client.ask(request, version).responses
    assert {result.name: result.error_code for result in results} == {
        "nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name: ErrorCode.NONE,
    }
    assert metadata(client, name)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_delete_topics_by_id(client, name):
    [created] = create(client, 7, name)
    states = [DeleteTopicState(topic_id=created.topic_id), DeleteTopicState(topic_id=b"\x09" * 16)]
    gone, unknown = client.ask(DeleteTopicsRequest(topics=states), 6).responses
    assert (gone.name, gone.error_code) == (name, ErrorCode.NONE)
    assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)


def test_deletion_can_be_disabled(ottla_broker_factory, name):
    broker = ottla_broker_factory(delete_topic_enable=False)
    with RawClient(broker.bootstrap) as client:
        create(client, 7, name)
        for version, code in (
            (2, ErrorCode.INVALID_REQUEST),
            (3, ErrorCode.TOPIC_DELETION_DISABLED),
        ):
            request = DeleteTopicsRequest(topic_names=[name])
            [result] = client.ask(request, version).responses
            assert result.error_code == code
        assert metadata(client, name)[0].error_code == ErrorCode.NONE


def test_a_full_disk_refuses_new_topics_until_it_has_room(ottla_broker_factory):
    """A limit on file sizes stands for the full disk: it needs no rights and can be lifted."""
    broker = ottla_broker_factory()
    with RawClient(broker.bootstrap) as client:
        create(client, 7, "before", partitions=50)
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1_000, hard))
        for _ in range(3):
            [refused] = create(client, 7, "during")
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        [missing] = metadata(client, "during", auto_create=True)
        assert missing.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(metadata(client, "before")[0].partitions) == 50
        assert client.ask(MetadataRequest(topics=None), 12).brokers

        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (soft, hard))
        deadline = time.monotonic() + RECOVERY_S_MAX
        while (code := create(client, 7, "during")[0].error_code) and time.monotonic() < deadline:
            assert code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_CONTROLLER)
        assert code == ErrorCode.NONE
        assert create(client, 7, "during")[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    broker.restart()
    with RawClient(broker.bootstrap) as client:
        known = {topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics}
        assert known == {"before", "during"}


@pytest.mark.parametrize("version", range(4))
def test_create_partitions(client, name, version):
    create(client, 7, name)
    topics = [
        CreatePartitionsTopic(name=name, count=3, assignments=None),
        CreatePartitionsTopic(name="nobody", count=3, assignments=None),
    ]
    results = client.ask(CreatePartitionsRequest(topics=topics), version).results
    assert [result.error_code for result in results] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert len(metadata(client, name)[0].partitions) == 3


def described(client, type, name, version=4):
    resource = DescribeConfigsResource(
        resource_type=type, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    [result] = client.ask(request, version).results
    assert result.error_code == ErrorCode.NONE
    return {entry.name: entry for entry in result.configs}


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs(client, name, version):
    create(client, 7, name, configs={"retention.ms": "5"})
    entries = described(client, TOPIC, name, version)
    retention = entries["retention.ms"]
    assert (retention.value, retention.config_source) == ("5", 1)
    assert [synonym.name for synonym in retention.synonyms] == [
        "retention.ms",
        "log.retention.hours",
    ]
    assert retention.config_type == (5 if version >= 3 else 0)
    assert described(client, BROKER, "1", version)["node.id"].read_only


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces(client, name, version):
    create(client, 7, name, configs={"retention.ms": "5"})
    resource = alter_configs.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name="segment.ms", value="7")],
    )
    request = alter_configs.AlterConfigsRequest(resources=[resource])
    [result] = client.ask(request, version).responses
    assert (result.error_code, result.resource_name) == (ErrorCode.NONE, name)
    entries = described(client, TOPIC, name)
    assert (entries["segment.ms"].value, entries["retention.ms"].config_source) == ("7", 5)


@pytest.mark.parametrize("version", range(2))
def test_incremental_alter_configs(client, name, version):
    create(client, 7, name, configs={"retention.ms": "5"})
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(
                name="segment.ms", config_operation=0, value="7"
            )
        ],
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    [result] = client.ask(request, version).responses
    assert result.error_code == ErrorCode.NONE
    entries = described(client, TOPIC, name)
    assert (entries["segment.ms"].value, entries["retention.ms"].value) == ("7", "5")


@pytest.mark.parametrize("version", range(14))
def test_metadata_creates_a_topic_and_shows_it_ready_for_use(client, name, version):
    [topic] = metadata(client, name, version=version, auto_create=True)
    assert (topic.name, topic.error_code) == (name, ErrorCode.NONE)
    assert [partition.leader_id for partition in topic.partitions] == [1]


def test_metadata_creates_nothing_when_told_so(client, name):
    [topic] = metadata(client, name, auto_create=False)
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.partitions == []


def test_many_clients_that_ask_for_one_new_topic_get_the_same_one(ottla_broker, name):
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(ottla_broker.bootstrap)) for _ in range(20)]
        for client in clients:
            client.send(request, 12)
        found = [client.receive().topics[0] for client in clients]
    assert {topic.error_code for topic in found} == {ErrorCode.NONE}
    assert len({topic.topic_id for topic in found}) == 1


@pytest.mark.parametrize("version", range(14))
def test_all_topics_are_told_in_every_version(client, name, version):
    create(client, 7, name)
    topics = [] if version == 0 else None
    request = MetadataRequest(topics=topics)
    for _ in range(2):
        reply = client.ask(request, version)
        assert name in {topic.name for topic in reply.topics}
        assert [broker.node_id for broker in reply.brokers] == [1]


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_gives_each_producer_another_one(client, version):
    request = InitProducerIdRequest(transactional_id=None)
    replies = [client.ask(request, version) for _ in range(3)]
    assert {(reply.error_code, reply.producer_epoch) for reply in replies} == {(0, 0)}
    assert len({reply.producer_id for reply in replies}) == 3


@pytest.mark.parametrize("version", range(6))
def test_a_transactional_id_without_a_name_gets_an_error_that_is_not_retried(client, version):
    reply = client.ask(InitProducerIdRequest(transactional_id=""), version)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    assert (reply.producer_id, reply.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("identity", "code"),
    [
        ({"producer_id": 5, "producer_epoch": 1}, ErrorCode.NONE),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_producers_earlier_identity_must_be_whole(client, identity, code):
    request = InitProducerIdRequest(**{"transactional_id": None} | identity)
    assert client.ask(request, 5).error_code == code


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(client, ottla_broker, version):
    reply = client.ask(DescribeClusterRequest(), version)
    assert (reply.error_code, reply.controller_id) == (ErrorCode.NONE, 1)
    [broker] = reply.brokers
    assert f"{broker.host}:{broker.port}" == ottla_broker.bootstrap
    if version >= 1:
        reply = client.ask(DescribeClusterRequest(endpoint_type=2), version)
        assert (reply.error_code, reply.controller_id) == (ErrorCode.NONE, 1)
        [controller] = reply.brokers
        assert f"{controller.host}:{controller.port}" == ottla_broker.bootstrap


def test_describe_topic_partitions(client, name):
    create(client, 7, name, partitions=3)
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name)], response_partition_limit=2
    )
    reply = client.ask(request, 0)
    assert [partition.partition_index for partition in reply.topics[0].partitions] == [0, 1]
    assert (reply.next_cursor.topic_name, reply.next_cursor.partition_index) == (name, 2)
