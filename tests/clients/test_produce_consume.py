"""Producing and consuming, with every client."""

from __future__ import annotations

import time

import pytest
from clientkit.catalog import BY_NAME, CLIENTS, able
from clientkit.driver import Driver

every_client = pytest.mark.parametrize("client", able(), indirect=True)

AWKWARD_RECORDS = [
    {"key": "k", "value": "key and value"},
    {"key": None, "value": "no key"},
    {"key": "tombstone", "value": None},
    {"key": "empty", "value": ""},
    {"key": "ключ", "value": "žlutý kůň 🐎", "headers": [["naïve", "ü"]]},
    {"key": "h", "value": "headers", "headers": [["a", "1"], ["b", ""], ["c", "3"]]},
    {"key": "t", "value": "own time", "timestamp": 1_700_000_000_123},
]


def in_order(records: list[dict], partition: int) -> list[str]:
    mine = [record for record in records if record["partition"] == partition]
    assert [record["offset"] for record in mine] == list(range(len(mine)))
    return [record["value"] for record in mine]


@every_client
def test_what_is_produced_is_consumed_in_order_per_partition(
    client: Driver, topic: str, group: str
) -> None:
    client.create_topic(topic, partitions=3)
    sent = {p: [f"{p}/{i}" for i in range(10)] for p in range(3)}
    for partition, values in sent.items():
        results = client.produce(topic, values, partition=partition)
        assert [r["offset"] for r in results] == list(range(10))
        assert {r["partition"] for r in results} == {partition}
    consumer = client.consume(topics=[topic], group=group)
    records = consumer.wait_records(30)
    assert {p: in_order(records, p) for p in range(3)} == sent


@every_client
def test_keys_values_headers_and_timestamps_come_back_as_sent(
    client: Driver, topic: str, group: str
) -> None:
    client.create_topic(topic, partitions=1)
    before_ms = int(time.time() * 1000) - 1000
    records = [{"partition": 0, **record} for record in AWKWARD_RECORDS]
    client.call("produce", topic=topic, records=records)
    seen = client.consume(topics=[topic], group=group).wait_records(len(AWKWARD_RECORDS))
    for sent, got in zip(AWKWARD_RECORDS, seen, strict=True):
        assert got["key"] == sent["key"]
        assert got["value"] == sent["value"]
        assert got["headers"] == sent.get("headers", [])
        if "timestamp" in sent:
            assert got["timestamp"] == sent["timestamp"]
        else:
            assert before_ms <= got["timestamp"] <= int(time.time() * 1000) + 1000


@pytest.mark.parametrize("client", able("null_header"), indirect=True)
def test_a_header_may_be_null(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=1)
    sent = {"value": "v", "headers": [["twice", None], ["twice", "x"]]}
    client.call("produce", topic=topic, records=[sent])
    (seen,) = client.consume(topics=[topic], group=group).wait_records(1)
    assert seen["headers"] == sent["headers"]


@pytest.mark.parametrize("client", able("record_without_key_and_value"), indirect=True)
def test_a_record_may_lack_both_key_and_value(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=1)
    client.call("produce", topic=topic, records=[{"key": None, "value": None}])
    (seen,) = client.consume(topics=[topic], group=group).wait_records(1)
    assert (seen["key"], seen["value"]) == (None, None)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@every_client
def test_every_acks_setting_delivers(client: Driver, topic: str, group: str, acks: str) -> None:
    client.create_topic(topic, partitions=1)
    values = [f"{acks} {i}" for i in range(20)]
    results = client.produce(topic, values, acks=acks)
    if acks != "0":
        assert [r["offset"] for r in results] == list(range(20))
    assert client.consume(topics=[topic], group=group).wait_records(20)
    assert client.call("offsets", topic=topic, partition=0) == {"earliest": 0, "latest": 20}


@pytest.mark.parametrize(
    ("client", "codec"),
    [(c.name, codec) for c in CLIENTS for codec in c.codecs],
    indirect=["client"],
)
def test_compressed_batches_stay_compressed_and_can_be_read(
    client: Driver, codec: str, topic: str, group: str, get_client
) -> None:
    client.create_topic(topic, partitions=1)
    records = [{"key": "k", "value": f"{i} ", "pad": 5000} for i in range(20)]
    results = client.call("produce", topic=topic, records=records, compression=codec)
    assert [r["offset"] for r in results] == list(range(20))
    seen = client.consume(topics=[topic], group=group).wait_records(20)
    assert [record["size"] for record in seen] == [len(f"{i} ") + 5000 for i in range(20)]
    assert [record["value"][:3].strip("x") for record in seen] == [f"{i} " for i in range(20)]
    stored_bytes = get_client("kafka-python").call("describe_log_dirs", topic=topic)["0"]
    assert (stored_bytes < 50_000) == (codec != "none"), stored_bytes


@every_client
def test_idempotent_producer_delivers_once_and_in_order(
    client: Driver, topic: str, group: str
) -> None:
    client.create_topic(topic, partitions=2)
    values = [str(i) for i in range(50)]
    for partition in (0, 1):
        client.produce(topic, values, partition=partition, idempotent=True)
    records = client.consume(topics=[topic], group=group).wait_records(100)
    assert in_order(records, 0) == values
    assert in_order(records, 1) == values


@every_client
def test_seek_back_reads_again(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=1)
    client.produce(topic, [str(i) for i in range(10)])
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_records(10)
    consumer.forget_records()
    consumer.seek(topic, 0, 7)
    consumer.wait_values(["7", "8", "9"])


@pytest.mark.parametrize("client", able("assign"), indirect=True)
def test_a_consumer_without_a_group_starts_where_it_is_told(client: Driver, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    client.produce(topic, [f"a{i}" for i in range(5)], partition=0)
    client.produce(topic, [f"b{i}" for i in range(5)], partition=1)
    client.consume(partitions=[[topic, 0, 3], [topic, 1, 4]]).wait_values(["a3", "a4", "b4"])


@every_client
def test_offsets_are_found_by_timestamp(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=1)
    start_ms = 1_700_000_000_000
    records = [{"value": str(i), "timestamp": start_ms + 1000 * i} for i in range(10)]
    client.call("produce", topic=topic, records=records)

    def offset_at(timestamp: int) -> int | None:
        return client.call("offset_for_time", topic=topic, partition=0, timestamp=timestamp)

    assert offset_at(start_ms - 5000) == 0
    assert offset_at(start_ms + 3000) == 3
    assert offset_at(start_ms + 3001) == 4
    assert offset_at(start_ms + 9001) is None
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_records(10)
    consumer.forget_records()
    consumer.seek(topic, 0, offset_at(start_ms + 8000))
    consumer.wait_values(["8", "9"])


@pytest.mark.parametrize("client", able("offset_of_max_timestamp"), indirect=True)
def test_the_youngest_record_is_found(client: Driver, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    for timestamp in (1_700_000_000_100, 1_700_000_000_900, 1_700_000_000_500):
        records = [{"value": "v", "timestamp": timestamp}]
        client.call("produce", topic=topic, records=records)
    assert client.call("offset_of_max_timestamp", topic=topic, partition=0) == 1


@every_client
def test_a_group_that_starts_at_the_end_sees_only_what_comes_later(
    client: Driver, topic: str, group: str
) -> None:
    client.create_topic(topic, partitions=1)
    client.produce(topic, ["before"])
    consumer = client.consume(topics=[topic], group=group, reset="latest")
    consumer.wait_assignment((topic, 0))
    # The position is fixed some time after the assignment; the first record that arrives shows it.
    for number in range(100):
        client.produce(topic, [f"after {number}"])
        if consumer.records:
            break
    assert consumer.wait_records(1)[0]["value"].startswith("after")


@pytest.mark.parametrize("client", able("auto_create"), indirect=True)
def test_producing_to_a_missing_topic_creates_it(client: Driver, topic: str) -> None:
    client.produce(topic, ["first"])
    assert topic in client.call("list_topics")
    assert client.call("partitions", topic=topic) == 1


@every_client
def test_log_append_time_is_the_brokers_time(client: Driver, topic: str, group: str) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    client.create_topic(topic, partitions=1, configs=configs)
    before_ms = int(time.time() * 1000)
    records = [{"value": str(i), "timestamp": 1_700_000_000_000} for i in range(3)]
    client.call("produce", topic=topic, records=records)
    seen = client.consume(topics=[topic], group=group).wait_records(3)
    assert all(before_ms <= record["timestamp"] <= time.time() * 1000 for record in seen)


@every_client
def test_the_topics_own_codec_is_applied_by_the_broker(
    client: Driver, topic: str, group: str, get_client
) -> None:
    codec = BY_NAME[client.name].codecs[-1]
    client.create_topic(topic, partitions=1, configs={"compression.type": codec})
    records = [{"value": f"{i} ", "pad": 5000} for i in range(10)]
    client.call("produce", topic=topic, records=records)
    seen = client.consume(topics=[topic], group=group).wait_records(10)
    assert [record["offset"] for record in seen] == list(range(10))
    assert {record["size"] for record in seen} == {5002}
    assert get_client("kafka-python").call("describe_log_dirs", topic=topic)["0"] < 25_000
