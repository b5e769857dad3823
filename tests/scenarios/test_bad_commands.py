"""Commands that cannot do what they are told: one line that names the thing, the limit, the way."""

from __future__ import annotations

import errno
import secrets
from pathlib import Path

import pytest

from ottla.testing import Broker
from scenarios.in_process import BrokerInside
from scenarios.shell import Shell


@pytest.fixture
def shell(ottla_broker: Broker) -> Shell:
    return Shell(ottla_broker.bootstrap)


@pytest.fixture
def name() -> str:
    return f"bad-{secrets.token_hex(4)}"


def refusal(shell: Shell, *arguments: str, code: int = 1, stdin: str = "") -> str:
    """The only line that the command says."""
    said = shell.run(*arguments, code=code, stdin=stdin).stderr
    assert said.count("\n") == 1, said
    assert "bug" not in said
    return said.removeprefix("ottla: ").removesuffix("\n")


# --------------------------------------------------------------------------------------- brokers


@pytest.mark.parametrize("command", [("describe",), ("alter", "log.level=debug")])
def test_a_broker_that_is_not_there_is_told_without_waiting_for_it(
    shell: Shell, command: tuple[str, ...]
) -> None:
    """With an hour to wait the test's own patience would end first."""
    configs = ("configs", *command, "--timeout", "3600", "--broker")
    assert refusal(shell, *configs, "9") == "There is no broker 9; the cluster has 1."
    assert refusal(shell, *configs, "x", code=2) == "--broker x is no number of a broker."


# --------------------------------------------------------------------------------------- produce


def test_what_produce_cannot_read_is_named_with_the_reason(
    shell: Shell, name: str, tmp_path: Path
) -> None:
    assert refusal(shell, "produce", name, str(tmp_path)) == (
        f"Cannot read {tmp_path}: it is a directory."
    )
    missing = str(tmp_path / "none")
    assert refusal(shell, "produce", name, missing) == (
        f"Cannot read {missing}: No such file or directory."
    )


def test_a_message_over_the_limit_of_the_command_is_told_with_both_sizes(
    shell: Shell, name: str
) -> None:
    small = ("produce", name, "-X", "message.max.bytes=2000")
    first, last = shell.run(*small, stdin="x" * 5000, code=1).stderr.splitlines()
    assert first == (
        "ottla: stdin line 1 was not delivered: it has 5000 bytes, but this command sends at most "
        "2000 in one message; -X message.max.bytes=N allows more, and the topic's "
        "max.message.bytes must allow it too."
    )
    assert last == "ottla: 1 of 1 messages were not delivered."


def test_a_message_over_the_limit_of_the_topic_is_told_with_both_sizes(
    shell: Shell, name: str
) -> None:
    shell.run("topics", "create", name, "--set", "max.message.bytes=2000")
    first, _ = shell.run("produce", name, stdin="x" * 5000, code=1).stderr.splitlines()
    assert first == (
        f"ottla: stdin line 1 was not delivered: it has 5000 bytes, but {name} takes at most 2000 "
        f"in one batch; `ottla topics alter {name} --set max.message.bytes=N` allows more."
    )


def test_a_full_disk_is_the_reason_that_produce_gives(tmp_path: Path, name: str) -> None:
    with BrokerInside(tmp_path / "data") as broker:
        broker.create_topic(name)
        broker.disk.fail("write", errno.ENOSPC, under=str(tmp_path / "data" / f"{name}-0"))
        shell = Shell(broker.bootstrap)
        said = shell.run("produce", name, "--timeout", "4", stdin="x\n", code=1).stderr
    first, last = said.splitlines()
    assert first.startswith(
        "ottla: stdin line 1 was not delivered within 4 s; the broker's last answer: "
    )
    assert "disk" in first.lower()
    assert f"{tmp_path / 'data'} has " in first
    assert "bytes free" in first
    assert last == "ottla: 1 of 1 messages were not delivered."


# ------------------------------------------------------------------------- topics, records, usage


def test_more_partitions_than_a_client_asks_for(shell: Shell, name: str) -> None:
    said = refusal(shell, "topics", "create", name, "-p", "100001", code=2)
    assert "'--partitions' / '-p'" in said
    assert "100000" in said


def test_partitions_that_are_not_there_are_told(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "-p", "2")
    delete = ("records", "delete", name, "--before", "0", "--yes", "--partition")
    assert refusal(shell, *delete, "9") == f"{name} has no partition 9; it has 0 to 1."


def test_a_misspelt_command_ends_in_one_full_stop(shell: Shell) -> None:
    assert refusal(shell, "topics", "lst", code=2) == (
        "No such command 'lst'. Did you mean 'list'? See `ottla topics --help`."
    )


# ----------------------------------------------------------------------------------------- start


def start(*arguments: str, code: int = 1) -> str:
    shell = Shell("unused:1")
    del shell.environment["OTTLA_BOOTSTRAP"]
    with shell.start("start", *arguments) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert said.count(b"\n") == 1, said.decode()
    return said.decode().removeprefix("ottla: ").removesuffix("\n")


@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_a_host_that_nobody_knows(tmp_path: Path, option: str) -> None:
    given = {"--listen": "127.0.0.1:0", "--http": "127.0.0.1:0", option: "no.such.host.invalid:1"}
    words = [word for pair in given.items() for word in pair]
    said = start("--data-dir", str(tmp_path / "data"), *words)
    assert "no.such.host.invalid:1 cannot be served: the host no.such.host.invalid is not" in said
    assert f"choose another address with {option} HOST:PORT" in said


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    said = start("--data-dir", str(tmp_path / "data"), "--listen", "192.0.2.1:9092")
    assert said == (
        "listeners=PLAINTEXT://192.0.2.1:9092 cannot be served: that is no address of this "
        "machine; choose another address with --listen HOST:PORT."
    )


@pytest.mark.parametrize("below", ["", "/below"])
def test_data_where_a_file_is(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.touch()
    said = start("--data-dir", f"{file}{below}", "--listen", "127.0.0.1:0")
    assert said == (
        f"{file}{below} cannot hold data: {file} is a file; choose a directory with --data-dir DIR."
    )


def test_a_configuration_that_may_not_be_read(tmp_path: Path) -> None:
    said = start(str(tmp_path), code=2)
    assert said == f"Cannot read {tmp_path}: Is a directory."
