"""A stop with many partitions: what a start needs of the short ones is in one file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.storage import closing
from ottla.log.opening.short_logs import FILE_NAME
from raw_client import RawClient
from records_kit import batch, fetch, list_offset, produce, produce_request, values_in
from scenarios.in_process import BrokerInside

PARTITIONS = 300
LATEST, MAX_TIMESTAMP = -1, -3


def _fill(client: RawClient, value: bytes, **options: Any) -> None:
    batches: dict[int, Any] = {index: batch(value, **options) for index in range(PARTITIONS)}
    reply = client.ask(produce_request("t", batches), 12)
    assert {answer.error_code for answer in reply.responses[0].partition_responses} == {0}


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few partitions are many."""
    monkeypatch.setattr(closing, "WITH_FILES_MAX", 2)


def test_of_few_logs_each_gets_the_files_that_kafka_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, count = tmp_path / "data", 3
    monkeypatch.setattr(closing, "WITH_FILES_MAX", count)
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", count + 2)
        for index in range(count):
            produce(client, "t", batch(b"v"), partition=index)
    for index in range(count):
        names = {path.name for path in (data / f"t-{index}").iterdir()}
        assert names == {
            *(f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")),
            f"{1:020d}.snapshot",
            "leader-epoch-checkpoint",
            "partition.metadata",
        }
    assert (data / FILE_NAME).read_text() == "0\n0\n"


@pytest.mark.seconds(60)
@pytest.mark.usefixtures("many")
def test_a_stop_writes_nothing_into_the_directories_of_many_short_logs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    sequenced = {"producer_id": 5, "producer_epoch": 0}
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", PARTITIONS)
        _fill(client, b"first", base_sequence=0, **sequenced)
    for index in range(PARTITIONS):
        names = {path.name for path in (data / f"t-{index}").iterdir()}
        assert names == {f"{0:020d}.log", "partition.metadata"}
    assert len((data / FILE_NAME).read_text().splitlines()) == 2 + PARTITIONS

    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        assert broker.info.was_clean
        repeated = batch(b"first", base_sequence=0, **sequenced)
        assert produce(client, "t", repeated, partition=7).base_offset == 0
        _fill(client, b"second", base_sequence=1, **sequenced)
        assert list_offset(client, "t", MAX_TIMESTAMP).offset == 0
        shutil.copytree(data, tmp_path / "crashed", ignore=shutil.ignore_patterns(".lock"))
    for place, was_clean in ((data, True), (tmp_path / "crashed", False)):
        with BrokerInside(place) as broker, RawClient(broker.bootstrap) as client:
            assert broker.info.was_clean is was_clean
            assert list_offset(client, "t", LATEST).offset == 2
            assert values_in(fetch(client, "t", 0).records) == [b"first", b"second"]
            repeated = batch(b"second", base_sequence=1, **sequenced)
            assert produce(client, "t", repeated).base_offset == 1


@pytest.mark.seconds(60)
@pytest.mark.usefixtures("many")
def test_a_start_without_that_file_finds_out_by_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 3)
        for index in range(3):
            produce(client, "t", batch(b"v"), partition=index)
    (data / FILE_NAME).unlink()
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        assert broker.info.was_clean
        assert values_in(fetch(client, "t", 0).records) == [b"v"]
        assert produce(client, "t", batch(b"w")).base_offset == 1
