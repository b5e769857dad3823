"""Log lines that come again and again are counted instead of written."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Iterable

import pytest

from ottla.broker.logs import MergingHandler, TextLines
from ottla.broker.repeats import KIND_LINES_MAX, KINDS_MAX, SAME_LINES_MAX, WINDOW_S, Repeats


def line(text: str, *arguments: object, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("ottla.x", logging.INFO, "x.py", 1, text, arguments, None)
    record.__dict__.update(extra)
    return record


def written(repeats: Repeats, records: Iterable[logging.LogRecord], now_s: float = 0.0) -> int:
    return sum(repeats.admit(record, now_s) for record in records)


def told(repeats: Repeats, now_s: float) -> list[tuple[str, int]]:
    return [(record.getMessage(), vars(record)["repeated"]) for record in repeats.due(now_s)]


def test_the_first_few_equal_lines_are_written_and_the_rest_is_counted() -> None:
    repeats = Repeats()
    assert written(repeats, (line("same") for _ in range(1000))) == SAME_LINES_MAX
    assert told(repeats, WINDOW_S - 1) == []
    ((message, count),) = told(repeats, WINDOW_S)
    assert message.startswith("same (")
    assert count == 1000 - SAME_LINES_MAX


def test_different_lines_are_all_written() -> None:
    repeats = Repeats()
    assert written(repeats, (line(f"number {number}") for number in range(300))) == 300


def test_what_goes_on_is_told_once_in_a_window_and_what_has_ended_is_forgotten() -> None:
    repeats = Repeats()
    written(repeats, (line("same") for _ in range(100)))
    assert [count for _, count in told(repeats, WINDOW_S)] == [100 - SAME_LINES_MAX]
    assert written(repeats, (line("same") for _ in range(50)), WINDOW_S) == 0
    assert [count for _, count in told(repeats, 2 * WINDOW_S)] == [50]
    assert told(repeats, 3 * WINDOW_S) == []
    assert written(repeats, [line("same")], 3 * WINDOW_S) == 1


def test_the_last_of_the_counted_lines_is_the_one_that_is_told() -> None:
    repeats = Repeats()
    lines = [line("from port %d", port, peer="h", alike="why") for port in range(100)]
    assert written(repeats, lines) == SAME_LINES_MAX
    ((message, _),) = told(repeats, WINDOW_S)
    assert message.startswith("from port 99 (")


def test_one_peer_cannot_fill_the_log_with_lines_that_differ() -> None:
    repeats = Repeats()
    lines = [line("bad %d", number, peer="1.2.3.4", alike=number) for number in range(10_000)]
    assert written(repeats, lines) == KIND_LINES_MAX
    other = line("bad %d", 7, peer="5.6.7.8", alike=7)
    assert written(repeats, [other]) == 1, "another peer is heard all the same"
    assert [count for _, count in told(repeats, WINDOW_S)] == [10_000 - KIND_LINES_MAX]


def test_what_is_remembered_is_bounded_and_no_count_is_lost() -> None:
    repeats = Repeats()
    written(repeats, (line("first") for _ in range(100)))
    shown = sum(repeats.admit(line(f"number {at}"), 1.0) for at in range(3 * KINDS_MAX))
    assert shown == 3 * KINDS_MAX
    assert len(repeats) <= KINDS_MAX
    assert sum(count for _, count in told(repeats, 1.0)) == 100 - SAME_LINES_MAX


def handler_with(stream: io.StringIO) -> MergingHandler:
    handler = MergingHandler(stream)
    handler.setFormatter(TextLines(short=True))
    return handler


def test_closing_the_log_tells_what_was_counted() -> None:
    stream = io.StringIO()
    handler = handler_with(stream)
    for _ in range(100):
        handler.handle(line("same"))
    assert stream.getvalue().count("same") == SAME_LINES_MAX
    handler.close()
    assert stream.getvalue().count("same") == SAME_LINES_MAX + 1
    assert f"({100 - SAME_LINES_MAX} more" in stream.getvalue()


def test_counts_are_told_though_nothing_else_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.repeats.WINDOW_S", 0.05)
    heard = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if re.search(r"\(\d+ more", text):
                heard.set()
            return super().write(text)

    handler = handler_with(Stream())
    for _ in range(100):
        handler.handle(line("same"))
    assert heard.wait(40)
    handler.close()
