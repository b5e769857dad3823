"""What each worker of a host is given, from what was given once."""

from __future__ import annotations

import pytest

from ottla.config import BrokerConfig
from ottla.config.workers import PORT_STEP, check_workers, worker_config
from ottla.errors import InvalidConfig
from ottla.testing.ports import WORKER_STEP

GIVEN = {
    "node.id": "3",
    "log.dirs": "/disk-1/ottla,/disk-2/ottla",
    "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://10.0.0.3:9093",
    "advertised.listeners": "PLAINTEXT://host-3:19092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@host-1:9093,2@host-2:9093,3@host-3:9093",
    "http.listener": "0.0.0.0:9644",
}


def worker(number: int, **changes: str) -> BrokerConfig:
    texts = {**GIVEN, **{name.replace("_", "."): text for name, text in changes.items()}}
    config = BrokerConfig.parse({name: text for name, text in texts.items() if text})
    check_workers(config, number)
    return worker_config(config, number, "machine-3")


def test_the_first_worker_is_the_node_itself() -> None:
    first = worker(1)
    assert (first.node_id, first.is_broker, first.is_controller) == (3, True, True)
    assert first.log_dirs == ("/disk-1/ottla", "/disk-2/ottla")
    assert first.listeners == ("PLAINTEXT://0.0.0.0:9102", "CONTROLLER://10.0.0.3:9093")
    assert first.bootstrap_listeners == ("PLAINTEXT://0.0.0.0:9092",)
    assert first.advertised_listeners == ("PLAINTEXT://host-3:19102",)
    assert (first.http_listener, first.broker_rack) == ("0.0.0.0:9644", "machine-3")


def test_the_others_are_brokers_with_numbers_ports_and_directories_of_their_own() -> None:
    third = worker(3)
    assert (third.node_id, third.is_broker, third.is_controller) == (2003, True, False)
    assert third.log_dirs == ("/disk-1/ottla/workers/3", "/disk-2/ottla/workers/3")
    assert third.listeners == ("PLAINTEXT://0.0.0.0:9122",)
    assert third.bootstrap_listeners == ("PLAINTEXT://0.0.0.0:9092",)
    assert third.advertised_listeners == ("PLAINTEXT://host-3:19122",)
    assert (third.http_listener, third.broker_rack) == ("0.0.0.0:9646", "machine-3")
    assert third.controller_quorum_voters == tuple(GIVEN["controller.quorum.voters"].split(","))


@pytest.mark.parametrize(
    ("listeners", "where"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9102"),
        ("0.0.0.0:9092", "127.0.0.1:9102"),
        ("[::]:9092", "[::1]:9102"),
        ("PLAINTEXT://10.0.0.3:9092,CONTROLLER://10.0.0.3:9093", "10.0.0.3:9093"),
    ],
)
def test_on_a_host_alone_the_others_ask_the_first(listeners: str, where: str) -> None:
    names = "CONTROLLER" if "CONTROLLER" in listeners else ""
    second = worker(
        2,
        listeners=listeners,
        controller_listener_names=names,
        controller_quorum_voters="",
        metadata_log_dir="/meta",
    )
    assert second.controller_quorum_bootstrap_servers == (where,)
    assert second.metadata_log_dir == "/meta/workers/2"


def test_what_was_said_of_the_rack_stays() -> None:
    assert worker(2, broker_rack="zone-a").broker_rack == "zone-a"


@pytest.mark.parametrize(
    ("changes", "workers", "words"),
    [
        ({}, 0, "must be 1 to 100"),
        ({}, 101, "must be 1 to 100"),
        ({"node_id": "1000", "controller_quorum_voters": ""}, 2, "must be below 1000"),
        ({"listeners": "127.0.0.1:0", "controller_listener_names": ""}, 2, "needs a port"),
        ({"listeners": "PLAINTEXT://h:9092,CONTROLLER://h:9102"}, 1, "have the same port"),
        ({"http_listener": "127.0.0.1:9111"}, 2, "have the same port"),
        ({"listeners": "PLAINTEXT://h:65520,CONTROLLER://h:9093"}, 2, "no ports above"),
        ({"bootstrap_listeners": "127.0.0.1:9"}, 2, "sets itself"),
        (
            {
                "listeners": "10.0.0.3:9092",
                "controller_listener_names": "",
                "controller_quorum_voters": "3@host-3:9092",
            },
            2,
            "3@host-3:9102",
        ),
    ],
)
def test_what_several_cannot_have_is_told(
    changes: dict[str, str], workers: int, words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words):
        worker(workers, **changes)


def test_a_controller_alone_has_no_workers() -> None:
    with pytest.raises(InvalidConfig, match="is for brokers"):
        worker(
            1,
            process_roles="controller",
            listeners="CONTROLLER://10.0.0.3:9093",
            advertised_listeners="",
        )


def test_a_shared_address_is_one_of_a_listener_for_clients() -> None:
    with pytest.raises(InvalidConfig, match=r"bootstrap\.listeners names CONTROLLER"):
        BrokerConfig.parse({**GIVEN, "bootstrap.listeners": "CONTROLLER://h:1"})


def test_fixtures_know_the_distance_of_the_ports() -> None:
    assert WORKER_STEP == PORT_STEP
