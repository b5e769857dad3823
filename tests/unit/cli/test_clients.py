"""Which cluster is meant, and how its failures are told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from ottla.cli.clients import Cluster, client_settings, on_cluster, words
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.times import parse_time_ms


def test_extra_wins_over_bootstrap_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers = file:1\nclient.id = from-file\n")
    assert client_settings(None, None, ())["bootstrap.servers"] == "127.0.0.1:9092"
    assert client_settings(None, str(file), ()) == {
        "bootstrap.servers": "file:1",
        "client.id": "from-file",
    }
    assert client_settings("flag:1", str(file), ())["bootstrap.servers"] == "flag:1"
    given = client_settings("flag:1", str(file), ["client.id=x", "sasl.password=a=b"])
    assert (given["client.id"], given["sasl.password"]) == ("x", "a=b")


@pytest.mark.parametrize(
    ("file", "extra", "expected"),
    [
        (None, ["novalue"], "-X novalue has no value; write -X NAME=VALUE."),
        ("/nowhere/client.properties", [], "Cannot read /nowhere/client.properties: No such file"),
    ],
)
def test_wrong_client_settings_are_told(file: str | None, extra: list[str], expected: str) -> None:
    with pytest.raises(WrongUsage, match=expected):
        client_settings(None, file, extra)


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_closed_port_is_told_at_once_with_what_to_do() -> None:
    cluster = Cluster({"bootstrap.servers": f"127.0.0.1:{unused_port()}"}, 30.0)
    with pytest.raises(CommandFailed, match=r"refused\. Start a broker with `ottla start`"):
        cluster.admin()


@pytest.mark.parametrize("server", ["127.0.0.1:port", "127.0.0.1:99999"])
def test_address_that_is_none_is_refused(server: str) -> None:
    with pytest.raises(WrongUsage, match="write HOST:PORT"):
        Cluster({"bootstrap.servers": server}, 30.0).admin()


def test_errors_of_the_cluster_become_one_line() -> None:
    @on_cluster
    def failing(cluster: Cluster) -> None:
        raise KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, "It is there already."))

    with pytest.raises(CommandFailed, match=r"^It is there already\.$"):
        failing(bootstrap=None, client_config=None, extra=None, timeout_s=1.0)


def test_known_errors_say_what_to_do() -> None:
    assert "ottla topics list" in words(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    assert "stop them first" in words(KafkaError(KafkaError.NON_EMPTY_GROUP))
    assert words(KafkaError(KafkaError.INVALID_PARTITIONS)) == "Invalid number of partitions"


def test_times_are_iso_or_milliseconds() -> None:
    assert parse_time_ms("1738324800000", "--timestamp") == 1738324800000
    assert parse_time_ms("2025-01-31T12:00:00Z", "--timestamp") == 1738324800000
    assert parse_time_ms("2025-01-31T13:00:00+01:00", "--timestamp") == 1738324800000
    with pytest.raises(WrongUsage, match="--timestamp noon is no time"):
        parse_time_ms("noon", "--timestamp")
