"""`ottla plan`: quantities as people write them, the table, and the documents' own figures."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla import capacity
from ottla.cli.failures import WrongUsage
from ottla.cli.main import main
from ottla.cli.plan import parse_bytes, parse_count, parse_duration_s, quantity

CAPACITY = (Path(__file__).parents[3] / "docs" / "capacity.md").read_text()
TRANSCRIPTS = re.findall(r"^```\n\$ (ottla plan .*?)\n(.*?)^```$", CAPACITY, re.M | re.S)
ROWS = re.findall(r"^\| `(--.*?)` \| (.*) \|$", CAPACITY, re.M)
ASKED = ["plan", "--messages-per-second", "10M", "--message-bytes", "1KB"]

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (parse_count, "2500", 2500),
        (parse_count, "10M", 10_000_000),
        (parse_count, "1.5k", 1500),
        (parse_count, "2 G", 2_000_000_000),
        (parse_bytes, "100", 100),
        (parse_bytes, "100B", 100),
        (parse_bytes, "1KB", 1000),
        (parse_bytes, "64KiB", 65_536),
        (parse_bytes, "1.5mb", 1_500_000),
        (parse_duration_s, "90s", 90),
        (parse_duration_s, "30m", 1800),
        (parse_duration_s, "12h", 43_200),
        (parse_duration_s, "7d", 604_800),
        (parse_duration_s, "2w", 1_209_600),
    ],
)
def test_quantities_are_read_as_people_write_them(
    parse: Callable[[str, str], float], text: str, expected: float
) -> None:
    assert parse(text, "--x") == expected


@pytest.mark.parametrize(
    "text", ["", "M", "-1", "1e9", "1,000", "10 M B", "\u0661", "inf", "1.", "x1"]
)
@pytest.mark.parametrize("parse", [parse_count, parse_bytes, parse_duration_s])
def test_what_is_no_quantity_is_refused(parse: Callable[[str, str], float], text: str) -> None:
    with pytest.raises(WrongUsage, match=r"^--x .*such as"):
        parse(text, "--x")


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (0, "", "0"),
        (999, "B", "999 B"),
        (999.6, "B", "1 KB"),
        (1000, "", "1K"),
        (10e6, "", "10M"),
        (1.254e9, "B/s", "1.25 GB/s"),
        (151.4e6, "B", "151 MB"),
        (2e22, "B", "20,000 EB"),
    ],
)
def test_quantities_are_shown_with_three_digits(amount: float, unit: str, text: str) -> None:
    assert quantity(amount, unit) == text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--messages-per-second", "many"], "many is not a number such as 2500, 10k or 1.5M."),
        (["--messages-per-second", "0"], "--messages-per-second 0 is too small; it must be"),
        (["--message-bytes", "1d"], "1d is not a size such as 100B, 1KB or 64KiB."),
        (["--message-bytes", "9" * 30], "is too large; 10 to the power of 18 is the most."),
        (["--retention", "7"], "--retention 7 is not a time such as 90s, 30m, 12h, 7d or 2w."),
        (["--batch-bytes", "big"], "--batch-bytes big is not a size"),
        (["--topics", "5", "--partitions", "3"], "--partitions 3 is less than --topics 5"),
        (["--partitions", "0"], "--partitions 0 is too small"),
        (["--partitions", ""], "--partitions  is not a number"),
        (["--replication", "0"], "--replication"),
        (["--reads", "-1"], "--reads"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_is_expected(
    options: list[str], expected: str, capsys: Captured
) -> None:
    assert main([*ASKED, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert expected in captured.err


def test_message_size_must_be_given(capsys: Captured) -> None:
    assert main(ASKED[:3]) == 2
    assert "Missing option '--message-bytes'" in capsys.readouterr().err


def test_json_has_the_workload_and_the_plan_as_plain_numbers(capsys: Captured) -> None:
    assert main([*ASKED, "--json"]) == 0
    captured = capsys.readouterr()
    row = json.loads(captured.out)
    assert (row["messages_per_s"], row["message_bytes"], row["retention_s"]) == (1e7, 1000, 604_800)
    assert (row["brokers"], row["decided_by"], row["partitions"]) == (336, "CPU", 336)
    assert row["revision"] == capacity.MEASURED_REVISION
    assert captured.err == ""


def test_arithmetic_is_shown_when_asked_and_on_a_terminal(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "CPU, writing           10M/s x 3 x 1.925 µs = 57.8 cores\n"
    assert main(ASKED) == 0
    assert step not in capsys.readouterr().out
    assert main([*ASKED, "--explain"]) == 0
    assert step in capsys.readouterr().out

    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    for options, is_shown in (([], True), (["--no-explain"], False)):
        terminal = Terminal(io.BytesIO(), encoding="utf-8")
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main([*ASKED, *options]) == 0
        shown = terminal.buffer
        assert isinstance(shown, io.BytesIO)
        assert (step.encode() in shown.getvalue()) is is_shown


def test_batches_that_nobody_waits_for_are_told(capsys: Captured) -> None:
    assert main([*ASKED, "--partitions", "1M"]) == 0
    assert "takes 6.4 s to fill; producers that wait 0.1 s send 1,000 B" in capsys.readouterr().err
    assert main([*ASKED, "--partitions", "1k"]) == 0
    assert capsys.readouterr().err == ""


def test_too_few_partitions_for_the_brokers_are_told(capsys: Captured) -> None:
    assert main([*ASKED, "--partitions", "12"]) == 0
    assert "Only 12 of 336 brokers would lead a partition" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "shown"), TRANSCRIPTS)
def test_the_documents_transcripts_are_what_the_command_prints(
    command: str, shown: str, capsys: Captured
) -> None:
    assert main(shlex.split(command)[1:]) == 0
    captured = capsys.readouterr()
    assert captured.out + captured.err == shown


@pytest.mark.parametrize(("options", "cells"), ROWS)
def test_the_documents_table_is_what_the_command_prints(
    options: str, cells: str, capsys: Captured
) -> None:
    assert main(["plan", "--messages-per-second", "10M", *shlex.split(options), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert cells.split(" | ") == [
        f"{row['brokers']:,}",
        row["decided_by"],
        f"{row['cores_writing']:,.1f}",
        f"{row['cores_reading']:,.1f}",
        f"{row['cores_requests']:,.1f}",
        quantity(row["disk_bytes"], "B"),
        quantity(row["network_in_bytes_per_s"], "B/s"),
        quantity(row["network_out_bytes_per_s"], "B/s"),
        quantity(row["memory_bytes"], "B"),
    ]


def test_the_document_has_transcripts_and_a_table() -> None:
    assert len(TRANSCRIPTS) >= 2
    assert len(ROWS) >= 6


@pytest.mark.parametrize(
    "coefficient",
    [
        *(f"{cost.produce_cpu_us:.3f}" for cost in (capacity.SMALL, capacity.LARGE)),
        *(f"{cost.consume_cpu_us:.3f}" for cost in (capacity.SMALL, capacity.LARGE)),
        f"{capacity.REQUEST_CPU_US} µs",
        f"{capacity.SYNCED_REQUEST_CPU_US} µs",
        f"{capacity.PARTITION_RSS_BYTES:,} B",
        f"{capacity.IMAGE_PARTITION_BYTES} B",
        f"{capacity.MEASURED_ON}, revision {capacity.MEASURED_REVISION}",
    ],
)
def test_the_document_names_the_coefficients_that_are_used(coefficient: str) -> None:
    assert coefficient in CAPACITY
