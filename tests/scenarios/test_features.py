"""Features that hold for the whole cluster, as clients and Kafka's tools ask for them (KIP-584)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kio.schema.api_versions.v3 import response as kio_v3
from kio.schema.api_versions.v4 import response as kio_v4
from kio.serial import entity_reader

from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from raw_client import RawClient
from scenarios.in_process import BrokerInside


def ask(bootstrap: str, version: int = 4) -> Any:
    with RawClient(bootstrap) as client:
        return client.ask(ApiVersionsRequest("test", "1"), version)


def finalized(reply: Any) -> dict[str, tuple[int, int]]:
    return {
        feature.name: (feature.min_version_level, feature.max_version_level)
        for feature in reply.finalized_features
    }


def test_the_level_of_metadata_is_told_and_no_feature_that_is_not_there(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside:
        for version in range(5):
            reply = ask(inside.bootstrap, version)
            if version < 3:
                assert (reply.finalized_features, reply.finalized_features_epoch) == ([], -1)
                continue
            assert finalized(reply) == {
                "kraft.version": (1, 1),
                "metadata.version": (21, 21),
                "transaction.version": (2, 2),
            }
            assert {
                each.name: (each.min_version, each.max_version) for each in reply.supported_features
            } == {
                "kraft.version": (0, 1),
                "metadata.version": (21, 23),
                "transaction.version": (0, 2),
            }


def test_the_epoch_of_features_never_goes_back(tmp_path: Path) -> None:
    epochs = []
    for number in range(3):
        with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
            epochs.append(ask(inside.bootstrap).finalized_features_epoch)
            topic = CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
            client.ask(CreateTopicsRequest(topics=[topic]), 7)
            epochs.append(ask(inside.bootstrap).finalized_features_epoch)
    assert epochs[0] >= 0
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize(("version", "messages"), [(3, kio_v3), (4, kio_v4)])
def test_another_codec_reads_the_same(tmp_path: Path, version: int, messages: Any) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        client.send(ApiVersionsRequest("test", "1"), version)
        frame = client.receive_frame()
    response, size = entity_reader(messages.ApiVersionsResponse)(frame, 4)
    assert size == len(frame) - 4
    assert {one.name: one.max_version_level for one in response.finalized_features} == {
        "kraft.version": 1,
        "metadata.version": 21,
        "transaction.version": 2,
    }
    assert {one.name: one.min_version for one in response.supported_features} == {
        "kraft.version": 0,
        "metadata.version": 21,
        "transaction.version": 0,
    }
    assert response.finalized_features_epoch >= 0


def features(bootstrap: str, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "ottla", "features", *arguments, "-b", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def level_by_command(bootstrap: str) -> int:
    code, told, _ = features(bootstrap, "list", "--json")
    assert code == 0
    of_quorum, row, of_transactions = [json.loads(line) for line in told.splitlines()]
    assert (of_quorum["feature"], of_quorum["level"]) == ("kraft.version", 1)
    assert (of_transactions["feature"], of_transactions["last"]) == ("transaction.version", 2)
    assert (row["feature"], row["first"], row["last"]) == ("metadata.version", 21, 23)
    level: int = row["level"]
    return level


def test_levels_are_raised_by_one_command_and_lowered_while_they_can_be(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside:
        to = inside.bootstrap
        assert level_by_command(to) == 21
        assert features(to, "upgrade", "--dry-run") == (
            0,
            "",
            "metadata.version can be set to 23.\n",
        )
        assert level_by_command(to) == 21
        assert features(to, "upgrade", "metadata.version=22")[0] == 0
        assert features(to, "downgrade", "metadata.version=21")[0] == 0
        assert features(to, "upgrade") == (0, "", "metadata.version is set to 23.\n")
        assert level_by_command(to) == 23
        assert features(to, "upgrade") == (0, "", "All features are at the last level.\n")
        code, _, said = features(to, "downgrade", "metadata.version=22")
        assert (code, said.count("\n")) == (1, 1)
        assert "what is written since 23 could not be read any more" in said
        code, _, said = features(to, "upgrade", "group.version=1")
        assert (code, said) == (
            1,
            "ottla: There is no feature group.version; there is metadata.version, "
            "transaction.version, kraft.version.\n",
        )
        code, _, said = features(to, "upgrade", "metadata.version")
        assert (code, said.count("\n")) == (2, 1)
