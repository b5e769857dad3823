"""Deleting a topic of many partitions: the loop goes on, and the name is another's at once."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.storage import departures
from ottla.errors import ErrorCode
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from raw_client import RawClient
from records_kit import batch, fetch, list_offset, produce, produce_request, values_in
from scenarios.in_process import BrokerInside
from scenarios.polling import until

PARTITIONS = 1000
WITH_FILES = 100


def _delete(client: RawClient, topic: str) -> None:
    reply = client.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5)
    assert [answer.error_code for answer in reply.responses] == [0]


def _fill(client: RawClient, topic: str, value: bytes) -> None:
    batches: dict[int, Any] = {index: batch(value) for index in range(WITH_FILES)}
    reply = client.ask(produce_request(topic, batches), 12)
    codes = {answer.error_code for answer in reply.responses[0].partition_responses}
    assert codes == {ErrorCode.NONE}


def _log_bytes(directory: Path) -> bytes:
    return (directory / f"{0:020d}.log").read_bytes()


@pytest.mark.seconds(60)
def test_others_are_served_while_the_directories_of_a_deleted_topic_cannot_be_renamed(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("big", PARTITIONS)
        broker.create_topic("other")
        _fill(client, "big", b"old")
        old_bytes = _log_bytes(data / "big-0")

        broker.disk.hold("rename", under=str(data))
        _delete(client, "big")
        broker.disk.wait_until_held()
        assert produce(client, "other", batch(b"v")).error_code == 0
        assert produce(client, "big", batch(b"v")).error_code == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

        broker.create_topic("big", PARTITIONS)
        assert list_offset(client, "big", -1).offset == 0
        assert fetch(client, "big", 0).records in (None, b"")
        with RawClient(broker.bootstrap) as producer:
            producer.send(produce_request("big", {0: batch(b"new")}), 12)
            producer.send(produce_request("big", {0: batch(b"newer")}, acks=1), 12)
            # The broker has both, and has kept its hands off the old topic's files.
            while broker.node._partitions.get("big", 0).end_offset < 2:
                assert values_in(fetch(client, "other", 0).records) == [b"v"]
            assert _log_bytes(data / "big-0") == old_bytes
            shutil.copytree(data, tmp_path / "crashed", ignore=shutil.ignore_patterns(".lock"))

            broker.disk.heal()
            for offset in (0, 1):
                answer = producer.receive().responses[0].partition_responses[0]
                assert (answer.error_code, answer.base_offset) == (0, offset)
        assert values_in(fetch(client, "big", 0).records) == [b"new", b"newer"]

    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        assert values_in(fetch(client, "big", 0).records) == [b"new", b"newer"]

    # A machine that stopped in between finds a topic of this name with another id: a stranger.
    crashed = tmp_path / "crashed"
    with BrokerInside(crashed) as broker, RawClient(broker.bootstrap) as client:
        assert list_offset(client, "big", -1).offset == 0
        assert produce(client, "big", batch(b"after")).base_offset == 0
        assert values_in(fetch(client, "big", 0).records) == [b"after"]
        assert values_in(fetch(client, "other", 0).records) == [b"v"]
        # The metadata log tells that its topic was deleted: then nothing of it is kept.
        while any(path.name.endswith("-delete") for path in crashed.iterdir()):
            assert list_offset(client, "big", -1).offset == 1
        assert not list(crashed.glob("*-stray"))


@pytest.mark.seconds(60)
def test_a_directory_that_cannot_be_renamed_is_never_taken_for_the_new_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "RETRY_PAUSE_S", 1000)
    data = tmp_path / "data"
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t")
        produce(client, "t", batch(b"old"))
        old_bytes = _log_bytes(data / "t-0")
        broker.disk.fail("rename", errno.EACCES, under=str(data))
        _delete(client, "t")
        broker.create_topic("t")
        with RawClient(broker.bootstrap) as producer:
            producer.send(produce_request("t", {0: batch(b"new")}), 12)
            while broker.node._partitions.get("t", 0).end_offset < 1:
                assert list_offset(client, "t", -1).offset == 0
        assert _log_bytes(data / "t-0") == old_bytes
    # The stop has told the producer nothing good, and left the old files alone.
    assert _log_bytes(data / "t-0") == old_bytes
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        assert list_offset(client, "t", -1).offset == 0
        assert produce(client, "t", batch(b"new")).base_offset == 0
        assert values_in(fetch(client, "t", 0).records) == [b"new"]


def test_a_rename_that_was_refused_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "RETRY_PAUSE_S", 0.01)
    data = tmp_path / "data"
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t")
        produce(client, "t", batch(b"old"))
        broker.disk.fail("rename", errno.EACCES, under=str(data), times=2)
        _delete(client, "t")
        broker.create_topic("t")
        assert produce(client, "t", batch(b"new")).base_offset == 0
        assert values_in(fetch(client, "t", 0).records) == [b"new"]
        while any(name.name.endswith("-delete") for name in data.iterdir()):
            assert list_offset(client, "t", -1).offset == 1


@pytest.mark.seconds(60)
def test_a_log_that_is_opened_again_while_its_topic_is_deleted_is_not_the_namesakes(
    tmp_path: Path,
) -> None:
    """After a failed sync a thread cuts and reads a log, by its name."""
    data = tmp_path / "data"
    settings = {"log_flush_offset_checkpoint_interval_ms": 50}
    with BrokerInside(data, **settings) as broker, RawClient(broker.bootstrap) as client:
        for name in ("t", "other"):
            broker.create_topic(name)
            assert produce(client, name, batch(b"old")).error_code == 0
        broker.disk.hold("truncate", under=str(data / "t-0"))
        broker.disk.fail("sync", errno.ENOSPC, under=str(data / "t-0"), times=1)
        assert produce(client, "t", batch(b"cut")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        broker.disk.wait_until_held()
        old_bytes = _log_bytes(data / "t-0")
        for name in ("t", "other"):
            _delete(client, name)
        broker.create_topic("t")
        client.send(produce_request("t", {0: batch(b"new")}), 12)
        # Directories leave one after the other: that of "t" would be gone by then.
        until(lambda: not (data / "other-0").exists(), "the other's directory stays")
        assert _log_bytes(data / "t-0") == old_bytes
        broker.disk.heal()
        answer = client.receive().responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 0)
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        assert values_in(fetch(client, "t", 0).records) == [b"new"]
