"""Admin calls, with every client that has them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from clientkit.catalog import able
from clientkit.driver import Driver, Refused

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
UNKNOWN_MEMBER_ID = 25
# A broker answers UNKNOWN_MEMBER_ID; librdkafka and kafkajs look first and refuse by themselves.
NOT_WHILE_IN_USE = (UNKNOWN_MEMBER_ID, None)
GROUP_SUBSCRIBED_TO_TOPIC = 86

every_client = pytest.mark.parametrize("client", able(), indirect=True)


@contextmanager
def refused(*codes: int | None):
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.code in codes, str(caught.value)


@every_client
def test_topics_are_created_listed_and_deleted(client: Driver, topic: str) -> None:
    client.create_topic(topic, partitions=5)
    assert topic in client.call("list_topics")
    with refused(TOPIC_ALREADY_EXISTS):
        client.call("create_topic", topic=topic, partitions=5)
    client.delete_topic(topic)


@pytest.mark.parametrize("client", able("default_partitions"), indirect=True)
def test_a_topic_without_a_number_of_partitions_gets_the_brokers_default(
    client: Driver, topic: str
) -> None:
    client.call("create_topic", topic=topic)
    client.call_until(lambda count: count == 1, "partitions", topic=topic)


@every_client
def test_bad_names_and_missing_topics_are_told_apart(client: Driver, topic: str) -> None:
    with refused(INVALID_TOPIC):
        client.call("create_topic", topic="not a name", partitions=1)
    with refused(UNKNOWN_TOPIC_OR_PARTITION):
        client.call("delete_topic", topic=topic)


@every_client
def test_a_deleted_topic_can_be_created_again_and_is_empty(
    client: Driver, topic: str, group: str
) -> None:
    client.create_topic(topic, partitions=1)
    client.produce(topic, ["old"])
    client.delete_topic(topic)
    client.create_topic(topic, partitions=1)
    assert client.call("offsets", topic=topic, partition=0) == {"earliest": 0, "latest": 0}
    client.produce(topic, ["new"])
    client.consume(topics=[topic], group=group).wait_values(["new"])


@every_client
def test_partitions_grow_but_never_shrink(client: Driver, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    client.call("create_partitions", topic=topic, partitions=4)
    client.call_until(lambda count: count == 4, "partitions", topic=topic)
    with refused(INVALID_PARTITIONS):
        client.call("create_partitions", topic=topic, partitions=3)


@every_client
def test_topic_configs_are_described_and_altered(client: Driver, topic: str) -> None:
    client.create_topic(topic, partitions=1, configs={"segment.bytes": "1048576"})
    configs = client.call("describe_configs", topic=topic)
    assert configs["segment.bytes"] == "1048576"
    assert configs["retention.ms"] == "604800000"
    assert configs["cleanup.policy"] == "delete"
    client.call("alter_config", topic=topic, name="retention.ms", value="3600000")
    client.call_until(
        lambda configs: configs["retention.ms"] == "3600000", "describe_configs", topic=topic
    )
    with refused(INVALID_CONFIG):
        client.call("alter_config", topic=topic, name="retention.ms", value="for ever")
    assert client.call("describe_configs", topic=topic)["retention.ms"] == "3600000"


@every_client
def test_records_are_deleted_up_to_an_offset(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=1)
    client.produce(topic, [str(i) for i in range(10)])
    assert client.call("delete_records", topic=topic, partition=0, before=6) == 6
    assert client.call("offsets", topic=topic, partition=0) == {"earliest": 6, "latest": 10}
    client.consume(topics=[topic], group=group).wait_values(["6", "7", "8", "9"])


@every_client
def test_groups_are_listed_and_described(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=2)
    client.produce(topic, ["a", "b"], partition=1)
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_values(["a", "b"])
    consumer.commit()
    assert group in client.call("list_groups")
    described = client.call("describe_group", group=group)
    assert described == {"state": "Stable", "members": [[[topic, 0], [topic, 1]]]}
    offsets = {(t, p): offset for t, p, offset in client.call("group_offsets", group=group)}
    assert offsets[topic, 1] == 2
    consumer.close()
    assert client.call("describe_group", group=group) == {"state": "Empty", "members": []}


@pytest.mark.parametrize("client", able("delete_group"), indirect=True)
def test_only_an_empty_group_is_deleted(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=1)
    client.produce(topic, ["a"])
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_records(1)
    consumer.commit()
    with refused(NON_EMPTY_GROUP):
        client.call("delete_group", group=group)
    consumer.close()
    client.call("delete_group", group=group)
    assert group not in client.call("list_groups")
    with refused(GROUP_ID_NOT_FOUND):
        client.call("delete_group", group=group)


@pytest.mark.parametrize("client", able("delete_offsets"), indirect=True)
def test_offsets_of_a_group_are_deleted_once_nobody_reads_the_topic(
    client: Driver, topic: str, group: str
) -> None:
    client.create_topic(topic, partitions=1)
    client.produce(topic, ["a"])
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_records(1)
    consumer.commit()
    with refused(GROUP_SUBSCRIBED_TO_TOPIC):
        client.call("delete_offsets", group=group, topic=topic, partition=0)
    consumer.close()
    assert client.call("group_offsets", group=group) == [[topic, 0, 1]]
    client.call("delete_offsets", group=group, topic=topic, partition=0)
    assert client.call("group_offsets", group=group) == []


@pytest.mark.parametrize("client", able("set_offset"), indirect=True)
def test_an_admin_sets_where_a_group_goes_on(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=1)
    client.produce(topic, [str(i) for i in range(10)])
    client.call("set_offset", group=group, topic=topic, partition=0, offset=6)
    assert client.call("group_offsets", group=group) == [[topic, 0, 6]]
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_values(["6", "7", "8", "9"])
    with refused(*NOT_WHILE_IN_USE):
        client.call("set_offset", group=group, topic=topic, partition=0, offset=0)


@pytest.mark.parametrize("client", able("describe_log_dirs"), indirect=True)
def test_log_directories_tell_the_size_of_partitions(client: Driver, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    client.call("produce", topic=topic, records=[{"value": "v", "pad": 2000, "partition": 0}])
    sizes = client.call("describe_log_dirs", topic=topic)
    assert 2000 < sizes["0"] < 2200
    assert sizes["1"] == 0


@every_client
def test_the_cluster_names_itself_and_its_broker(client: Driver) -> None:
    described = client.call("describe_cluster")
    assert described["cluster_id"]
    assert described["brokers"] == [client.bootstrap]
    (broker,) = described["ids"]
    configs = client.call("describe_broker", broker=broker)
    assert configs["num.partitions"] == "1"
    assert configs["log.retention.ms"] in (None, "", "604800000")


@pytest.mark.parametrize("client", able("describe_features"), indirect=True)
def test_the_version_of_the_metadata_is_a_feature(client: Driver) -> None:
    """What `kafka-features describe` shows is this answer, in a table."""
    described = client.call("describe_features")
    level = described["finalized"]["metadata.version"]
    lowest, highest = described["supported"]["metadata.version"]
    assert 0 < lowest <= level <= highest
