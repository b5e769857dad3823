"""The commands as a person or a script uses them, against a running broker."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Broker
from scenarios.shell import TIMEOUT_S, Shell


@pytest.fixture
def shell(ottla_broker: Broker) -> Shell:
    return Shell(ottla_broker.bootstrap)


@pytest.fixture
def name() -> str:
    """A name for a topic or group that no other test has."""
    return f"cli-{secrets.token_hex(4)}"


def offsets(rows: list[dict[str, Any]], field: str) -> dict[int, int | None]:
    return {row["partition"]: row[field] for row in rows}


# --------------------------------------------------------------------------------------- topics


def test_topic_lives_and_dies(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "-p", "2", "--set", "segment.bytes=1000000")
    assert {"topic": name, "partitions": 2, "replicas": 1} in shell.rows("topics", "list")
    described = shell.run("topics", "describe", name)
    assert "segment.bytes=1000000" in described.stderr
    shell.run("topics", "alter", name, "--partitions", "3", "--set", "retention.ms=5000")
    partitions = shell.rows("topics", "describe", name)
    assert [row["partition"] for row in partitions] == [0, 1, 2]
    assert [row["next_offset"] for row in partitions] == [0, 0, 0]
    shell.run("topics", "delete", name, "--yes")
    assert name not in shell.run("topics", "list").stdout


def test_one_bad_topic_does_not_stop_its_sibling(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    refused = shell.run("topics", "create", name, f"{name}-2", code=1)
    assert refused.stderr.count("\n") == 2
    assert f"ottla: {name}: " in refused.stderr
    assert f"Created {name}-2." in refused.stderr
    shell.run("topics", "create", name, "--if-not-exists")


def test_wrong_topic_setting_is_told_with_the_nearest(shell: Shell, name: str) -> None:
    refused = shell.run("topics", "create", name, "--set", "retention.m=1", code=1)
    assert "retention.ms" in refused.stderr
    assert name not in shell.run("topics", "list").stdout


def test_deleting_without_a_person_or_yes_is_refused(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    assert "add --yes" in shell.run("topics", "delete", name, code=2).stderr
    assert name in shell.run("topics", "list").stdout


def test_person_is_asked_before_a_topic_goes(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    code, shown = shell.on_terminal("topics", "delete", name, typed="n\n")
    assert code == 1
    assert f"Delete {name} with all messages? [y/N]" in shown
    code, shown = shell.on_terminal("topics", "delete", name, typed="y\n")
    assert code == 0
    assert name not in shell.run("topics", "list").stdout


def test_missing_topic_is_told(shell: Shell, name: str) -> None:
    for arguments in (
        ("topics", "describe", name),
        ("topics", "delete", name, "--yes"),
        ("consume", name, "--no-follow"),
        ("records", "delete", name, "--before", "latest", "--yes"),
    ):
        assert "There is no " in shell.run(*arguments, code=1).stderr


# ------------------------------------------------------------------------- produce and consume


def test_messages_go_in_and_come_out(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    produced = shell.run(
        "produce", name, "-K", ":", "-H", "kind=test", stdin="a:1\nb:two words\nc:NIL\n"
    )
    assert produced.stdout == ""
    assert produced.stderr == f"Produced 3 messages to {name}.\n"
    rows = shell.rows("consume", name, "--from-beginning", "--no-follow")
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (0, "a", "1"),
        (1, "b", "two words"),
        (2, "c", "NIL"),
    ]
    assert all(row["headers"] == [["kind", "test"]] for row in rows)
    shown = shell.run(
        "consume", name, "--from-beginning", "--max", "2", "--format", r"%t-%p@%o %k=%v %h\n"
    )
    assert shown.stdout == f"{name}-0@0 a=1 kind=test\n{name}-0@1 b=two words kind=test\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_passes(shell: Shell, name: str, codec: str) -> None:
    lines = "".join(f"{number} {'x' * 100}\n" for number in range(200))
    shell.run("topics", "create", name)
    shell.run("produce", name, "--compression", codec, stdin=lines)
    assert shell.run("consume", name, "--from-beginning", "--no-follow").stdout == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_passes(shell: Shell, name: str, acks: str) -> None:
    shell.run("topics", "create", name)
    shell.run("produce", name, "--acks", acks, stdin="x\n")
    assert shell.run("consume", name, "--from-beginning", "--max", "1").stdout == "x\n"


def test_files_and_whole_files_are_sent(shell: Shell, name: str, tmp_path: Path) -> None:
    shell.run("topics", "create", name)
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"\xff\x00\n")
    shell.run("produce", name, str(tmp_path / "a"), "-", stdin="3\n")
    shell.run("produce", name, "--whole", str(tmp_path / "a"), str(tmp_path / "b"))
    values = [row["value"] for row in shell.rows("consume", name, "--offset", "0", "--no-follow")]
    assert values == ["1", "2", "3", "1\n2\n", {"base64": "/wAK"}]
    assert "Cannot read" in shell.run("produce", name, str(tmp_path / "none"), code=1).stderr


def test_undelivered_message_is_named_with_its_reason(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "--set", "max.message.bytes=2000")
    produced = shell.run(
        "produce", name, "-X", "linger.ms=0", "-X", "batch.num.messages=1",
        stdin=f"small\n{'x' * 5000}\nlast\n", code=1,
    )  # fmt: skip
    first, last = produced.stderr.splitlines()
    assert first.startswith("ottla: stdin line 2 was not delivered: ")
    assert "2000" in first
    assert last == "ottla: 1 of 3 messages were not delivered."
    values = shell.run("consume", name, "--from-beginning", "--no-follow").stdout
    assert values == "small\nlast\n"


def test_produce_says_where_each_message_went(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "-p", "3")
    output = shell.run("produce", name, "--partition", "2", "--json", stdin="a\nb\n").stdout
    assert [json.loads(line) for line in output.splitlines()] == [
        {"topic": name, "partition": 2, "offset": 0},
        {"topic": name, "partition": 2, "offset": 1},
    ]
    assert (
        "no such partition"
        in shell.run(
            "produce", name, "--partition", "9", "--timeout", "5", stdin="a\n", code=1
        ).stderr
    )


def test_message_of_ten_megabytes_passes(shell: Shell, name: str, tmp_path: Path) -> None:
    shell.run("topics", "create", name)
    file = tmp_path / "large"
    file.write_bytes(os.urandom(5_000_000).hex().encode())
    shell.run("produce", name, "--whole", str(file))
    consumed = shell.run("consume", name, "--from-beginning", "--no-follow", "--format", "%v")
    assert consumed.stdout.encode() == file.read_bytes()


def test_consuming_starts_where_it_is_told(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "-p", "2")
    for partition in ("0", "1"):
        shell.run("produce", name, "-p", partition, stdin=f"a{partition}\nb{partition}\n")

    def values(*arguments: str) -> list[str]:
        return sorted(shell.run("consume", name, "--no-follow", *arguments).stdout.split())

    assert values() == []
    assert values("--offset", "1") == ["b0", "b1"]
    assert values("--offset", "-1", "--partition", "1") == ["b1"]
    assert values("--offset", "-100") == ["a0", "a1", "b0", "b1"]
    assert values("--timestamp", "2020-01-01") == ["a0", "a1", "b0", "b1"]
    assert values("--timestamp", str(2**42)) == []
    late = shell.run("consume", name, "--offset", "3", "--no-follow", code=1)
    assert f"{name}-0 has offsets 0 to 2, but not 3." in late.stderr
    late = shell.run("consume", name, "--partition", "2", code=1)
    assert f"{name} has no partition 2; it has 0 to 1." in late.stderr


@pytest.mark.parametrize("count", [3, 200_000], ids=["at-the-end", "amid-much-data"])
def test_reader_that_leaves_ends_consume_in_silence(shell: Shell, name: str, count: int) -> None:
    shell.run("topics", "create", name)
    shell.run("produce", name, stdin="".join(f"{number}\n" for number in range(count)))
    with shell.start("consume", name, "--from-beginning") as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        assert consuming.stdout.readline() == b"0\n"
        consuming.stdout.close()
        assert consuming.wait(TIMEOUT_S) == 0
        assert consuming.stderr.read() == b""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_interrupted_member_leaves_its_group_and_commits(
    shell: Shell, name: str, number: int, code: int
) -> None:
    shell.run("topics", "create", name)
    shell.run("produce", name, stdin="1\n2\n")
    with shell.start("consume", name, "--group", name, "--from-beginning") as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        assert consuming.stdout.readline() == b"1\n"
        assert consuming.stdout.readline() == b"2\n"
        consuming.send_signal(number)
        assert consuming.wait(TIMEOUT_S) == code
        assert consuming.stderr.read() == b""
    (row,) = shell.rows("groups", "describe", name)
    assert (row["state"], row["committed"], row["lag"]) == ("empty", 2, 0)


@pytest.fixture
def _in_the_background() -> Iterator[None]:
    """As in the background job of a script, whose children ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_in_the_background")
def test_these_tests_interrupt_commands_wherever_they_run(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    shell.run("produce", name, stdin="1\n")
    with shell.start("consume", name, "--from-beginning") as consuming:
        assert consuming.stdout is not None
        assert consuming.stdout.readline() == b"1\n"
        consuming.send_signal(signal.SIGINT)
        assert consuming.wait(TIMEOUT_S) == 130
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_bar_and_colours_are_for_terminals_only(shell: Shell, name: str, tmp_path: Path) -> None:
    shell.run("topics", "create", name)
    file = tmp_path / "lines"
    file.write_text("line\n" * 5000)
    code, shown = shell.on_terminal("produce", name, str(file))
    assert code == 0
    assert "messages" in shown
    assert "\x1b[" in shown
    assert "\x1b" not in shell.run("produce", name, str(file)).stderr
    assert "\x1b[1mTOPIC" in shell.on_terminal("topics", "list")[1]
    assert "\x1b" not in shell.on_terminal("topics", "list", NO_COLOR="1")[1]
    assert "\x1b" not in shell.run("topics", "list").stdout


# --------------------------------------------------------------------------------------- groups


def test_group_goes_on_where_it_was(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    shell.run("produce", name, stdin="1\n2\n3\n")
    group = ("consume", name, "--group", name, "--from-beginning")
    assert shell.run(*group, "--max", "2").stdout == "1\n2\n"
    (row,) = shell.rows("groups", "describe", name)
    assert (row["committed"], row["next_offset"], row["lag"]) == (2, 3, 1)
    assert shell.run(*group, "--no-follow").stdout == "3\n"
    assert {"group": name, "state": "empty"} in shell.rows("groups", "list")


def test_offsets_are_reset_after_a_dry_run(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "-p", "2")
    for partition in ("0", "1"):
        shell.run("produce", name, "-p", partition, stdin="1\n2\n3\n4\n")
    shell.run("consume", name, "--group", name, "--from-beginning", "--no-follow")
    reset = ("groups", "reset-offsets", name)
    dry = shell.run(*reset, "--all-topics", "--to-earliest")
    assert "add --execute" in dry.stderr
    assert offsets(shell.rows("groups", "describe", name), "committed") == {0: 4, 1: 4}

    def after(*arguments: str) -> dict[int, int | None]:
        planned = offsets(shell.rows(*reset, *arguments, "--execute"), "new_offset")
        found = offsets(shell.rows("groups", "describe", name), "committed")
        assert {index: found[index] for index in planned} == planned
        return found

    assert after("-t", f"{name}:1", "--to-offset", "2") == {0: 4, 1: 2}
    assert after("-t", name, "--shift-by", "-3") == {0: 1, 1: 0}
    assert after("-t", name, "--to-latest") == {0: 4, 1: 4}
    assert after("-t", name, "--to-datetime", "2020-01-01T00:00:00Z") == {0: 0, 1: 0}
    assert after("-t", name, "--to-datetime", str(2**42)) == {0: 4, 1: 4}
    assert after("-t", name, "--to-offset", "99") == {0: 4, 1: 4}


def test_offsets_of_a_running_group_are_left_alone(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    shell.run("produce", name, stdin="1\n")
    with shell.start("consume", name, "--group", name, "--from-beginning") as consuming:
        assert consuming.stdout is not None
        assert consuming.stdout.readline() == b"1\n"
        (row,) = shell.rows("groups", "describe", name)
        assert (row["state"], row["client"]) == ("stable", "ottla-cli")
        refused = shell.run(
            "groups", "reset-offsets", name, "-t", name, "--to-earliest", "--execute", code=1
        )
        assert "1 running members; stop them first" in refused.stderr
        refused = shell.run("groups", "delete", name, "--yes", code=1)
        assert "stop them first" in refused.stderr
        consuming.send_signal(signal.SIGINT)
        consuming.wait(TIMEOUT_S)
    shell.run("groups", "delete", name, "--yes")
    assert "no such group" in shell.run("groups", "describe", name, code=1).stderr


# ------------------------------------------------------------------- configs, records, node


def test_settings_of_a_topic_are_changed_and_put_back(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    alter = ("configs", "alter", "--topic", name)
    shell.run(*alter, "retention.ms=1000", "cleanup.policy=compact,delete")
    shown = {
        row["name"]: row["value"] for row in shell.rows("configs", "describe", "--topic", name)
        if row["source"] == "topic"
    }  # fmt: skip
    assert shown == {"retention.ms": "1000", "cleanup.policy": "compact,delete"}
    shell.run(*alter, "--unset", "retention.ms")
    rows = shell.rows("configs", "describe", "--topic", name, "--all")
    values = {row["name"]: row for row in rows}
    assert values["retention.ms"]["value"] == "604800000"
    assert values["retention.ms"]["source"] != "topic"
    assert "write.caching" in values
    refused = shell.run(*alter, "retention.ms=soon", code=1)
    assert "retention.ms" in refused.stderr
    assert "whole number" in refused.stderr


def test_settings_of_a_broker_are_shown(shell: Shell) -> None:
    rows = shell.rows("configs", "describe", "--broker", "1", "--all")
    values = {row["name"]: row["value"] for row in rows}
    assert values["node.id"] == "1"
    assert values["group.initial.rebalance.delay.ms"] == "0"


def test_old_messages_are_deleted(shell: Shell, name: str) -> None:
    shell.run("topics", "create", name)
    shell.run("produce", name, stdin="1\n2\n3\n")
    delete = ("records", "delete", name, "--yes")
    assert shell.rows(*delete, "--before", "2") == [
        {"topic": name, "partition": 0, "first_offset": 2}
    ]
    assert shell.run("consume", name, "--from-beginning", "--no-follow").stdout == "3\n"
    shell.run(*delete, "--before", "latest")
    assert shell.rows("topics", "describe", name)[0]["first_offset"] == 3
    assert shell.run(*delete, "--before", "99", code=1).stderr.startswith(f"ottla: {name}-0: ")


def test_node_status_tells_brokers_and_health(shell: Shell, ottla_broker: Broker) -> None:
    (facts,) = shell.rows("node", "status", "--http", ottla_broker.http.removeprefix("http://"))
    assert facts["brokers"] == [f"1@{ottla_broker.bootstrap}"]
    assert facts["controller"] == 1
    assert facts["under_replicated"] == facts["without_leader"] == 0
    assert facts["ready"] is True
    shown = shell.run("node", "status", "--http", ottla_broker.http.removeprefix("http://")).stdout
    figures = dict(re.split(r"  +", line, maxsplit=1) for line in shown.splitlines())
    assert figures["ready"] == "yes"
    assert figures["version"] == version("ottla")
    assert figures["up for"].endswith(("s", "min"))
    assert figures["partitions"] == str(facts["partitions"])
    assert re.match(r"\d+ open; since the start \d+ accepted", figures["connections"])
    assert re.match(r"\S+ messages/s, \S+ k?B/s; since the start ", figures["written"])
    assert figures[f"directory {ottla_broker.data_dir}"].endswith(" free")
    assert "on average" in figures["event loop delay"]
    assert "cluster id" in shell.run("node", "status").stdout
    assert "Cannot ask" in shell.run("node", "status", "--http", "127.0.0.1:1", code=1).stderr


# -------------------------------------------------------------------------------- which cluster


def test_cluster_is_found_by_flag_file_or_environment(
    shell: Shell, ottla_broker: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={ottla_broker.bootstrap}\n")
    del shell.environment["OTTLA_BOOTSTRAP"]
    shell.run("topics", "list", "--config", str(file))
    shell.run("topics", "list", "-b", ottla_broker.bootstrap)
    shell.run("topics", "list", "-X", f"bootstrap.servers={ottla_broker.bootstrap}")
    refused = shell.run("topics", "list", "-b", "127.0.0.1:1", code=1)
    assert refused.stderr.count("\n") == 1
    assert "ottla start" in refused.stderr
    wrong = shell.run("topics", "list", "-b", ottla_broker.bootstrap, "-X", "bogus=1", code=1)
    assert "bogus" in wrong.stderr


# ---------------------------------------------------------------------------------------- start


def test_start_tells_a_person_what_to_try_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    shell = Shell("127.0.0.1:1")
    addresses = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    del shell.environment["OTTLA_BOOTSTRAP"]
    with shell.start("start", "--data-dir", str(tmp_path / "data"), *addresses) as started:
        assert started.stderr is not None
        lines: list[str] = []
        deadline = time.monotonic() + TIMEOUT_S
        while not (lines and "consume" in lines[-1]):
            assert time.monotonic() < deadline
            lines.append(started.stderr.readline().decode())
        shown = "".join(lines)
        address = shown.partition("listens on ")[2].split()[0]
        assert str(tmp_path / "data") in shown
        produce, consume = (line.split("| ")[-1].split()[1:] for line in lines[-2:])
        shell.run(*produce, stdin="hello\n")
        assert shell.run(*consume, "--max", "1").stdout == "hello\n"
        assert address in " ".join(produce)
        started.send_signal(signal.SIGINT)
        assert started.wait(TIMEOUT_S) == 130


def test_broker_logs_json_lines_and_changes_level_at_run_time(tmp_path: Path) -> None:
    with Broker({"log.format": "json"}, data_dir=tmp_path / "data") as broker:
        shell = Shell(broker.bootstrap)
        shell.run("configs", "alter", "--broker", "1", "log.level=debug")
        rows = shell.rows("configs", "describe", "--broker", "1")
        assert {row["name"]: row["value"] for row in rows}["log.level"] == "debug"
    lines = broker.log_text().splitlines()
    assert all({"time", "level", "message"} <= json.loads(line).keys() for line in lines)
