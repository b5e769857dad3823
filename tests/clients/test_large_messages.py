"""Messages of 10 MiB pass at the broker's defaults; a larger one fails alone."""

from __future__ import annotations

import hashlib

import pytest
from clientkit.catalog import able
from clientkit.driver import Driver

MESSAGE_TOO_LARGE = 10
LARGE_BYTES = 10 * 1024 * 1024
TOO_LARGE_BYTES = 11 * 1024 * 1024
CLIENT_LIMIT_BYTES = 20 * 1024 * 1024

every_client = pytest.mark.parametrize("client", able(), indirect=True)


@every_client
def test_ten_megabytes_pass_end_to_end(client: Driver, topic: str, group: str) -> None:
    client.create_topic(topic, partitions=1)
    record = {"value": "start", "pad": LARGE_BYTES - len("start")}
    wish = {"topic": topic, "records": [record], "max_bytes": CLIENT_LIMIT_BYTES}
    assert client.call("produce", **wish) == [{"partition": 0, "offset": 0}]
    consumer = client.consume(topics=[topic], group=group, max_bytes=CLIENT_LIMIT_BYTES)
    (seen,) = consumer.wait_records(1)
    assert seen["size"] == LARGE_BYTES
    value = b"start" + b"x" * (LARGE_BYTES - len("start"))
    assert seen["sha256"] == hashlib.sha256(value).hexdigest()


@every_client
def test_a_message_that_is_too_large_fails_alone(client: Driver, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    records = [
        {"value": "before", "partition": 0},
        {"value": "start", "pad": TOO_LARGE_BYTES, "partition": 1},
        {"value": "after", "partition": 0},
    ]
    wish = {"topic": topic, "records": records, "max_bytes": CLIENT_LIMIT_BYTES}
    assert client.call("produce", **wish) == [
        {"partition": 0, "offset": 0},
        {"error": MESSAGE_TOO_LARGE},
        {"partition": 0, "offset": 1},
    ]
    assert client.call("offsets", topic=topic, partition=1)["latest"] == 0
