"""What one client writes, commits or places, every other client finds."""

from __future__ import annotations

import pytest
from clientkit.catalog import BY_NAME, able, present
from clientkit.driver import wait_shared

RECORDS_PER_CODEC = 5


@pytest.mark.parametrize("producer", able())
def test_every_client_reads_what_this_one_compressed(
    producer: str, topic: str, group: str, get_client
) -> None:
    """One topic per codec; a client without the codec does not take part in that topic."""
    writer = get_client(producer)
    for codec in BY_NAME[producer].codecs:
        name = f"{topic}-{codec}"
        writer.create_topic(name, partitions=1)
        records = [
            {"key": str(i), "value": f"{codec} {i} ", "pad": 500, "headers": [["codec", codec]]}
            for i in range(RECORDS_PER_CODEC)
        ]
        writer.call("produce", topic=name, records=records, compression=codec)
    for reader in present():
        codecs = [c for c in BY_NAME[producer].codecs if c in BY_NAME[reader].codecs]
        topics = [f"{topic}-{codec}" for codec in codecs]
        consumer = get_client(reader).consume(topics=topics, group=f"{group}-{reader}")
        seen = consumer.wait_records(RECORDS_PER_CODEC * len(codecs))
        wanted = {(c, str(i)) for c in codecs for i in range(RECORDS_PER_CODEC)}
        assert {(record["headers"][0][1], record["key"]) for record in seen} == wanted, reader
        for record in seen:
            head = f"{record['headers'][0][1]} {record['key']} "
            assert record["value"] == head + "x" * 500
        consumer.close()


def test_equal_keys_go_to_equal_partitions_whoever_sends_them(topic: str, get_client) -> None:
    keys = [f"key-{i}" for i in range(40)] + ["ключ", "", "a" * 100]
    records = [{"key": key, "value": key} for key in keys]
    get_client("confluent").create_topic(topic, partitions=7)
    placements = {}
    for name in present():
        results = get_client(name).call("produce", topic=topic, records=records)
        placements[name] = [result["partition"] for result in results]
    reference = placements["kafka-python"]
    assert len(set(reference)) == 7
    assert {name: placed for name, placed in placements.items() if placed != reference} == {}


def test_a_group_is_handed_on_from_client_to_client(topic: str, group: str, get_client) -> None:
    get_client("confluent").create_topic(topic, partitions=1)
    for turn, name in enumerate(present()):
        client = get_client(name)
        values = [f"{name} {i}" for i in range(5)]
        client.produce(topic, values)
        consumer = client.consume(topics=[topic], group=group)
        consumer.wait_values(values)
        consumer.commit()
        consumer.close()
        offset = 5 * (turn + 1)
        assert get_client("confluent").call("group_offsets", group=group) == [[topic, 0, offset]]


def test_one_group_of_all_languages_shares_a_topic(topic: str, group: str, get_client) -> None:
    names = present("range")
    count = 2 * len(names)
    admin = get_client("confluent")
    admin.create_topic(topic, partitions=count)
    members = [get_client(name).consume(topics=[topic], group=group) for name in names]
    wait_shared(members, [(topic, number) for number in range(count)])
    assert {len(member.assignment) for member in members} == {2}
    described = admin.call("describe_group", group=group)
    assert described["state"] == "Stable"
    assert sorted(described["members"]) == sorted(
        [list(pair) for pair in member.assignment] for member in members
    )
    for number in range(count):
        admin.produce(topic, [f"{number}"], partition=number)
    for member in members:
        member.wait_values([str(number) for _, number in member.assignment])
