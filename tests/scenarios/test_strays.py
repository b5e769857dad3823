"""Directories that the metadata does not know: renamed, told, and never removed."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from ottla.broker.storage import finder
from ottla.cli.main import main
from raw_client import RawClient
from records_kit import batch, fetch, list_offset, produce, values_in
from scenarios.in_process import BrokerInside

METADATA = "__cluster_metadata-0"


def _strays(data: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in data.glob("*-stray"))


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_topics_whose_metadata_was_lost_are_kept_as_strays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("known")
        produce(client, "known", batch(b"here"))
    older = tmp_path / "older"
    shutil.copytree(data, older, ignore=shutil.ignore_patterns("known-0", ".lock"))
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("forgotten", 2)
        for index in range(2):
            assert produce(client, "forgotten", batch(b"precious"), partition=index).error_code == 0
    kept = _files(data / "forgotten-0")
    shutil.rmtree(data / METADATA)
    shutil.copytree(older, data, dirs_exist_ok=True)
    (data / ".kafka_cleanshutdown").unlink()

    for _ in range(2):
        with (
            caplog.at_level(logging.WARNING),
            BrokerInside(data) as broker,
            RawClient(broker.bootstrap) as client,
        ):
            assert values_in(fetch(client, "known", 0).records) == [b"here"]
        assert _strays(data) == ["forgotten-0", "forgotten-1"]
        (stray,) = data.glob("forgotten-0.*-stray")
        assert _files(stray) == kept
    told = [record.getMessage() for record in caplog.records if "-stray" in record.getMessage()]
    assert len(told) == 2, "once for each, at the start that found it"
    assert str(data / "forgotten-0") in told[0]
    assert "ottla log dump" in told[0]
    assert main(["log", "dump", str(stray), "--records"]) == 0
    assert "precious" in capsys.readouterr().out

    # The name is free for a new topic, which has nothing of the old one.
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("forgotten")
        assert list_offset(client, "forgotten", -1).offset == 0
        assert produce(client, "forgotten", batch(b"new")).base_offset == 0
    assert _strays(data) == ["forgotten-0", "forgotten-1"]


def test_many_strays_are_told_in_few_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    with BrokerInside(data) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t")
        produce(client, "t", batch(b"v"))
    count = finder.STRAYS_TOLD_MAX + 5
    for index in range(count):
        shutil.copytree(data / "t-0", data / f"strange-{index}")
    # Too many partitions are no less strange, nor is a directory without an id.
    shutil.copytree(data / "t-0", data / "t-7")
    (data / "t-7" / "partition.metadata").unlink()
    with caplog.at_level(logging.WARNING), BrokerInside(data) as broker:
        assert broker.readiness()[0] == 200
    assert len(_strays(data)) == count + 1
    told = [record.getMessage() for record in caplog.records if "-stray" in record.getMessage()]
    assert len(told) == finder.STRAYS_TOLD_MAX + 1
    assert told[-1].startswith("6 more")
