"""Tab on a command line: names of topics and groups, from the broker that runs or not at all."""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from ottla.cli.completion import ANSWER_S_MAX
from ottla.testing import Broker
from scenarios.shell import OTTLA, TIMEOUT_S, Shell

NAME = f"complete-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def shell(ottla_broker: Broker) -> Shell:
    """Two topics and a group, all of which have their names in common with nothing else."""
    shell = Shell(ottla_broker.bootstrap)
    shell.run("topics", "create", f"{NAME}-2", f"{NAME}-1")
    shell.run("produce", f"{NAME}-1", stdin="hello\n")
    shell.run("consume", f"{NAME}-1", "-g", f"{NAME}-group", "--from-beginning", "--max", "1")
    return shell


def offered(shell: Shell, line: str, **environment: str) -> list[str]:
    """What bash would show for the line so far; whatever happens, nothing else is said."""
    words = line.split(" ")
    done = subprocess.run(
        OTTLA,
        env={
            **shell.environment,
            "_OTTLA_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    "command",
    [
        "topics describe",
        "topics alter",
        "topics delete",
        "topics delete another",
        "produce",
        "consume",
        "records delete",
        "configs describe --topic",
        "configs alter -t",
        "groups reset-offsets a-group --topic",
    ],
)
def test_topics_are_offered_where_one_is_meant(shell: Shell, command: str) -> None:
    assert offered(shell, f"ottla {command} {NAME}") == [f"{NAME}-1", f"{NAME}-2"]


@pytest.mark.parametrize(
    "command", ["groups describe", "groups delete", "groups reset-offsets", "consume t --group"]
)
def test_groups_are_offered_where_one_is_meant(shell: Shell, command: str) -> None:
    assert offered(shell, f"ottla {command} {NAME}") == [f"{NAME}-group"]


def test_a_new_topic_is_not_offered_the_names_that_are_taken(shell: Shell) -> None:
    assert offered(shell, f"ottla topics create {NAME}") == []


def test_internal_topics_are_offered_to_who_begins_one(shell: Shell) -> None:
    assert not any(name.startswith("__") for name in offered(shell, "ottla consume "))
    assert "__consumer_offsets" in offered(shell, "ottla consume __")


def test_the_cluster_that_the_line_names_is_asked(shell: Shell) -> None:
    bootstrap = shell.environment["OTTLA_BOOTSTRAP"]
    line = f"ottla topics describe --bootstrap {bootstrap} {NAME}"
    assert offered(shell, line, OTTLA_BOOTSTRAP="127.0.0.1:1") == [f"{NAME}-1", f"{NAME}-2"]


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address where connections are taken and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


@pytest.mark.parametrize("command", ["topics describe", "groups describe"])
def test_without_a_broker_nothing_is_offered_and_nothing_is_said(
    shell: Shell, deaf: str, command: str
) -> None:
    for nobody in ("127.0.0.1:1", "nowhere.invalid:9092", "not an address", deaf):
        started = time.monotonic()
        assert offered(shell, f"ottla {command} ", OTTLA_BOOTSTRAP=nobody) == []
        # A start of Python on a busy machine; librdkafka by itself would wait for 30 s.
        assert time.monotonic() - started < ANSWER_S_MAX + 15
