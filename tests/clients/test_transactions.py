"""Consume, transform, produce: each message is copied once, whoever dies meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from clientkit.catalog import able
from clientkit.driver import Driver

PARTITIONS = 3
MESSAGES = 60
DEADLINE_S = 120
KEYED = [{"key": str(number), "value": str(number)} for number in range(MESSAGES)]


def wait_until(condition: Callable[[], bool], what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def prepare(client: Driver, source: str, target: str) -> None:
    client.create_topic(source, PARTITIONS)
    client.create_topic(target, PARTITIONS)
    results = client.call("produce", topic=source, records=KEYED, idempotent=True)
    assert [each for each in results if "error" in each] == []


def copy(client: Driver, source: str, group: str, **wishes: Any) -> None:
    client.call(
        "copy",
        topic=source,
        to=f"{source}-copy",
        group=group,
        transactional_id=f"copier-of-{source}",
        **wishes,
    )


def wait_copied(client: Driver) -> dict[str, Any]:
    status: dict[str, Any] = {}

    def is_done() -> bool:
        status.update(client.call("copied"))
        return bool(status["done"])

    wait_until(is_done, lambda: f"not copied: {status}")
    return status


def check_copied_once(client: Driver, source: str, group: str) -> None:
    target = f"{source}-copy"
    places = [[target, index, 0] for index in range(PARTITIONS)]
    reader = client.consume(partitions=places, isolation="read_committed")
    client.wait(lambda: len(reader.records) >= MESSAGES, lambda: str(reader), DEADLINE_S)
    # One message more at the end of each partition shows that nothing else was on its way.
    for index in range(PARTITIONS):
        client.produce(target, ["the end"], partition=index)
    ends = MESSAGES + PARTITIONS
    client.wait(lambda: len(reader.records) >= ends, lambda: str(reader), DEADLINE_S)
    wanted = Counter(str(number) for number in range(MESSAGES))
    assert Counter(reader.values) == wanted + Counter({"the end": PARTITIONS})
    told = client.call("group_offsets", group=group)
    assert sum(offset for topic, _, offset in told if topic == source) == MESSAGES
    reader.close()


@pytest.mark.parametrize("client", able("transactions"), indirect=True)
def test_what_is_aborted_is_seen_by_nobody_and_what_is_committed_once(
    client: Driver, topic: str, group: str
) -> None:
    prepare(client, topic, f"{topic}-copy")
    copy(client, topic, group, each=10, abort_every=3)
    status = wait_copied(client)
    assert status["aborted"] >= 2
    check_copied_once(client, topic, group)
    dirty = [[f"{topic}-copy", index, 0] for index in range(PARTITIONS)]
    everything = client.consume(partitions=dirty, isolation="read_uncommitted")
    more = MESSAGES + PARTITIONS + status["aborted"]
    client.wait(lambda: len(everything.records) >= more, lambda: str(everything), DEADLINE_S)


@pytest.mark.parametrize("name", able("transactions"))
def test_a_broker_killed_in_the_middle_costs_nothing_and_doubles_nothing(
    name: str, topic: str, group: str, own_broker, new_client
) -> None:
    client = new_client(name, own_broker.bootstrap)
    prepare(client, topic, f"{topic}-copy")
    copy(client, topic, group, each=2, timeout_ms=5000)
    for kills in range(1, 3):
        wait_until(
            lambda: client.call("copied")["committed"] >= kills * 4,  # noqa: B023
            lambda: client.call("copied"),
        )
        own_broker.kill()
        own_broker.restart()
    wait_copied(client)
    check_copied_once(new_client(name, own_broker.bootstrap), topic, group)
