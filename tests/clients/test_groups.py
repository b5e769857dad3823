"""Consumer groups with several members: joining, leaving, committing, coming back."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from clientkit.catalog import able
from clientkit.driver import Consumer, Driver, wait_shared

every_client = pytest.mark.parametrize("client", able(), indirect=True)


def partitions_of(topic: str, count: int) -> list[tuple[str, int]]:
    return [(topic, number) for number in range(count)]


def wait_values(consumers: Iterable[Consumer], values: list[str]) -> None:
    """Waits until the consumers together have as many records, and checks which they are."""
    members = list(consumers)

    def seen() -> list[str]:
        return sorted(value for member in members for value in member.values)

    members[0]._driver.wait(
        lambda: len(seen()) >= len(values), lambda: "; ".join(str(member) for member in members)
    )
    assert seen() == sorted(values)


def produce_everywhere(client: Driver, topic: str, count: int, label: str) -> list[str]:
    sent = []
    for partition in range(count):
        values = [f"{label} {partition}/{i}" for i in range(5)]
        client.produce(topic, values, partition=partition)
        sent.extend(values)
    return sent


@every_client
def test_a_second_member_takes_a_share_and_gives_it_back(
    client: Driver, topic: str, group: str
) -> None:
    client.create_topic(topic, partitions=4)
    everything = partitions_of(topic, 4)
    first = client.consume(topics=[topic], group=group)
    first.wait_assignment(*everything)
    second = client.consume(topics=[topic], group=group)
    wait_shared([first, second], everything)
    assert len(first.assignment) == len(second.assignment) == 2
    wait_values([first, second], produce_everywhere(client, topic, 4, "shared"))
    first.commit()
    second.commit()
    second.close()
    first.wait_assignment(*everything)
    first.forget_records()
    wait_values([first], produce_everywhere(client, topic, 4, "alone"))


@every_client
def test_a_restarted_client_resumes_at_its_commit(
    client: Driver, topic: str, group: str, new_client
) -> None:
    client.create_topic(topic, partitions=1)
    client.produce(topic, ["a", "b", "c"])
    first = new_client(client.name)
    consumer = first.consume(topics=[topic], group=group)
    consumer.wait_values(["a", "b", "c"])
    consumer.commit()
    client.produce(topic, ["d"])
    consumer.wait_values(["a", "b", "c", "d"])
    consumer.close()
    first.stop()
    assert client.call("group_offsets", group=group) == [[topic, 0, 3]]
    client.produce(topic, ["e"])
    again = new_client(client.name).consume(topics=[topic], group=group)
    again.wait_values(["d", "e"])


@pytest.mark.parametrize("client", able("cooperative"), indirect=True)
def test_cooperative_members_keep_what_they_need_not_give(
    client: Driver, topic: str, group: str
) -> None:
    client.create_topic(topic, partitions=4)
    everything = partitions_of(topic, 4)
    wish = {"topics": [topic], "group": group, "assignor": "cooperative-sticky"}
    first = client.consume(**wish)
    first.wait_assignment(*everything)
    second = client.consume(**wish)
    wait_shared([first, second], everything)
    assert [len(revoked) for revoked in first.revocations] == [2]
    assert second.revocations == []
    kept = list(second.assignment)
    first.close()
    second.wait_assignment(*everything)
    assert second.revocations == []
    assert set(kept) <= set(second.assignment)


@pytest.mark.parametrize("client", able("static"), indirect=True)
def test_a_static_member_comes_back_without_a_rebalance(
    client: Driver, topic: str, group: str, new_client
) -> None:
    client.create_topic(topic, partitions=4)
    everything = partitions_of(topic, 4)
    first = client.consume(topics=[topic], group=group, instance_id="one")
    first.wait_assignment(*everything)
    crashing = new_client(client.name)
    second = crashing.consume(topics=[topic], group=group, instance_id="two")
    wait_shared([first, second], everything)
    share, revocations = list(second.assignment), len(first.revocations)
    crashing.stop()
    back = new_client(client.name).consume(topics=[topic], group=group, instance_id="two")
    back.wait_assignment(*share)
    values = produce_everywhere(client, topic, 4, "later")
    wait_values([first, back], values)
    assert len(first.revocations) == revocations


@pytest.mark.parametrize("client", ["confluent"], indirect=True)
def test_a_crashed_members_share_goes_to_the_others(
    client: Driver, topic: str, group: str, new_client
) -> None:
    client.create_topic(topic, partitions=4)
    everything = partitions_of(topic, 4)
    first = client.consume(topics=[topic], group=group)
    crashing = new_client(client.name)
    second = crashing.consume(topics=[topic], group=group)
    wait_shared([first, second], everything)
    crashing.stop()
    first.wait_assignment(*everything)


@every_client
def test_a_group_notices_new_partitions(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=2)
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_assignment(*partitions_of(topic, 2))
    client.call("create_partitions", topic=topic, partitions=3)
    consumer.wait_assignment(*partitions_of(topic, 3))
    wait_values([consumer], produce_everywhere(client, topic, 3, "grown"))
