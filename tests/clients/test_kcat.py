"""kcat, as a person types it (Debian builds it on a librdkafka of its own, an older one)."""

from __future__ import annotations

import json
import subprocess

import pytest
from clientkit.toolchains import KCAT, require

TIMEOUT_S = 30


@pytest.fixture
def kcat(broker):
    require(KCAT)

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["kcat", "-b", broker.bootstrap, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def created_topic(topic: str, get_client) -> str:
    get_client("confluent").create_topic(topic, partitions=1)
    return topic


def test_metadata_is_listed(kcat, created_topic: str, broker) -> None:
    listed = json.loads(kcat("-L", "-J"))
    assert [node["name"] for node in listed["brokers"]] == [broker.bootstrap]
    (described,) = [t for t in listed["topics"] if t["topic"] == created_topic]
    assert [p["partition"] for p in described["partitions"]] == [0]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(kcat, created_topic: str, codec: str) -> None:
    lines = "a:1\nb:2\nc:3\n"
    kcat("-P", "-t", created_topic, "-K:", "-H", "made=by-kcat", "-z", codec, stdin=lines)
    seen = kcat("-C", "-t", created_topic, "-o", "beginning", "-e", "-q", "-f", "%o %k:%s %h\n")
    assert seen == "0 a:1 made=by-kcat\n1 b:2 made=by-kcat\n2 c:3 made=by-kcat\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_kcat_compresses_is_stored_compressed(
    kcat, created_topic: str, codec: str, get_client
) -> None:
    """An older librdkafka compresses only if the broker says that it knows ancient requests."""
    lines = "".join(f"{i} {'x' * 5000}\n" for i in range(20))
    kcat("-P", "-t", created_topic, "-z", codec, stdin=lines)
    assert kcat("-C", "-t", created_topic, "-o", "beginning", "-e", "-q") == lines
    stored_bytes = get_client("kafka-python").call("describe_log_dirs", topic=created_topic)["0"]
    assert stored_bytes < 50_000


def test_an_empty_value_is_null_on_demand(kcat, created_topic: str) -> None:
    kcat("-P", "-t", created_topic, "-K:", "-Z", stdin="gone:\n")
    seen = kcat("-C", "-t", created_topic, "-o", "beginning", "-e", "-q", "-f", "%k %S\n")
    assert seen == "gone -1\n"


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_acks(kcat, created_topic: str, acks: str) -> None:
    kcat("-P", "-t", created_topic, "-X", f"acks={acks}", stdin="line\n")
    assert kcat("-C", "-t", created_topic, "-o", "beginning", "-c", "1", "-q") == "line\n"


def test_an_idempotent_producer(kcat, created_topic: str) -> None:
    lines = "".join(f"{i}\n" for i in range(100))
    kcat("-P", "-t", created_topic, "-X", "enable.idempotence=true", stdin=lines)
    assert kcat("-C", "-t", created_topic, "-o", "beginning", "-e", "-q") == lines


def test_offsets_from_the_end_and_by_time(kcat, topic: str, get_client) -> None:
    client = get_client("confluent")
    client.create_topic(topic, partitions=1)
    start_ms = 1_700_000_000_000
    records = [{"value": str(i), "timestamp": start_ms + 1000 * i} for i in range(10)]
    client.call("produce", topic=topic, records=records)
    assert kcat("-C", "-t", topic, "-o", "-2", "-e", "-q") == "8\n9\n"
    assert kcat("-C", "-t", topic, "-p", "0", "-o", f"s@{start_ms + 7000}", "-e", "-q") == (
        "7\n8\n9\n"
    )
    assert kcat("-Q", "-t", f"{topic}:0:{start_ms + 3000}").split() == [topic, "[0]", "offset", "3"]


def test_a_balanced_consumer_commits_and_resumes(kcat, created_topic: str, group: str) -> None:
    settings = ["-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000", "-q"]
    kcat("-P", "-t", created_topic, stdin="a\nb\n")
    assert kcat("-G", group, "-c", "2", *settings, created_topic) == "a\nb\n"
    kcat("-P", "-t", created_topic, stdin="c\n")
    assert kcat("-G", group, "-c", "1", *settings, created_topic) == "c\n"
