"""Ctrl-C that meets a call of confluent-kafka, which may lose it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress

import pytest

from interrupts import ctrl_c_is_heard
from ottla.cli import interrupts
from ottla.cli.main import main


@pytest.fixture(autouse=True)
def _listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interrupts, "_HEARD", threading.Event())
    with ctrl_c_is_heard():
        interrupts.listen()
        yield


def lose_a_ctrl_c() -> None:
    """As C code does that clears an error which it did not expect."""
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_what_was_made_of_a_ctrl_c_is_a_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform(_: object) -> int:
        lose_a_ctrl_c()
        raise TypeError("Expected .name to be a unicode string type, not str")

    monkeypatch.setattr("ottla.cli.main._perform", perform)
    assert main(["node", "status"]) == 130
    assert capsys.readouterr().err == ""


def test_nobody_waits_for_an_answer_after_a_ctrl_c_that_got_lost() -> None:
    lose_a_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        interrupts.result(Future(), timeout_s=60)


def test_who_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupts.listen()
    os.kill(os.getpid(), signal.SIGINT)
    assert not interrupts.were_heard()
