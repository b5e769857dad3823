"""A command that another process does, which stood by for it: as if it had done it itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ottla.pipelines.launch.standby import place
from ottla.pipelines.launch.standby.asking import await_ready, end_one
from scenarios import standby_process
from scenarios.polling import until
from scenarios.terminals import INTERRUPT, SUSPEND, WIDTH, all_of, at_a_terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux one stands by")

FOREVER_S = 600.0
PLENTY = "MemAvailable: 99999999 kB\n"


class Home:
    """A directory with the program, in which one stands by; its cache has a short path."""

    def __init__(self, directory: Path, cache: Path) -> None:
        self.directory = directory
        self.program = directory / "program.py"
        self.program.write_text(Path(standby_process.__file__).read_text())
        (directory / "some.jar").touch()
        (directory / "meminfo").write_text(PLENTY)
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        self.place = cache / "ottla" / "standby"

    def command(self, what: str, setting: str, *more: str) -> list[str]:
        return [sys.executable, str(self.program), what, setting, *more]

    def leave(self, setting: str = "a", idle_s: float = FOREVER_S) -> tuple[int, Path]:
        """One that is ready: its process, and its temporary files."""
        (self.directory / "waiting").unlink(missing_ok=True)
        command = self.command("leave", setting, str(idle_s))
        subprocess.run(command, env=self.environment, cwd=self.directory, check=True, timeout=60)
        until((self.directory / "waiting").exists, "nobody stands by")
        until(lambda: (self.directory / "waiting").read_text(), "nobody stands by")
        process, scratch = (self.directory / "waiting").read_text().split()
        return int(process), Path(scratch)

    def start(self, *more: str, setting: str = "a", **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command("do", setting, *more),
            **{
                "env": self.environment,
                "cwd": self.directory,
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                **options,
            },
        )

    def do(self, *more: str, setting: str = "a", **options: Any) -> tuple[int, str, str]:
        with self.start(*more, setting=setting, **options) as process:
            out, err = process.communicate("from stdin", timeout=60)
        return process.returncode, out, err

    def begun(self) -> int:
        """The process in which a command that lasts has begun."""
        file = self.directory / "begun"
        until(lambda: file.exists() and file.read_text(), "it has not begun")
        return int(file.read_text())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    cache = Path(tempfile.mkdtemp(prefix="o", dir="/tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    home = Home(tmp_path, cache)
    yield home
    end_one(home.place)
    shutil.rmtree(cache)


def is_gone(process: int) -> bool:
    return not psutil.pid_exists(process)


def test_it_is_done_elsewhere_as_if_it_were_here(home: Home) -> None:
    process, scratch = home.leave()
    assert stat_of(home.place) == 0o700
    assert stat_of(home.place / "socket") == 0o600
    columns = {**home.environment, "COLUMNS": "33"}
    code, out, err = home.do("x", "y z", env=columns)
    seen = json.loads(out)
    assert seen.pop("process") == process
    assert seen == {
        "arguments": ["do", "a", "x", "y z"],
        "columns": "33",
        "stdin": "from stdin",
        "terminals": [False, False, False],
        "width": None,
        "line_by_line": [False, True],
        "path": str(home.directory),
    }
    assert (code, err) == (7, "to stderr\n")
    until(lambda: is_gone(process), "it is still there")
    assert not scratch.exists()
    # Used once.
    assert home.do("x") == (0, "cold\n", "")
    assert [file.name for file in home.place.iterdir()] == ["lock"]


def stat_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_asked_for_in_other_circumstances_is_never_done_by_it(home: Home) -> None:
    process, _ = home.leave()
    elsewhere = home.directory / "elsewhere"
    elsewhere.mkdir()
    cold = (0, "cold\n", "")
    assert home.do("x", setting="b") == cold
    assert home.do("x", env={**home.environment, "PGPASSWORD": "x"}) == cold
    assert home.do("x", env={**home.environment, "PYTHONHASHSEED": "1"}) == cold
    assert home.do("x", cwd=elsewhere) == cold
    assert home.do("x", umask=0o077) == cold
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        pinned = {"preexec_fn": lambda: os.sched_setaffinity(0, cores[:1])}
        assert home.do("x", **pinned) == cold
    # It has waited for the right one.
    assert json.loads(home.do("x")[1])["process"] == process


def test_of_two_at_once_one_gets_it(home: Home) -> None:
    process, _ = home.leave()
    both = [home.start("x") for _ in range(2)]
    outs = [one.communicate("", timeout=60)[0] for one in both]
    assert sorted(one.returncode for one in both) == [0, 7]
    assert "cold\n" in outs
    outs.remove("cold\n")
    assert json.loads(outs[0])["process"] == process


def test_what_asks_for_a_new_process_gets_it(home: Home) -> None:
    home.leave()
    assert home.do("again") == (0, "once more {'TOLD': 'yes'}\n", "")


# ------------------------------------------------------------------------------ kill -9, signals


def test_one_that_is_killed_while_it_waits_costs_nothing_but_time(home: Home) -> None:
    process, scratch = home.leave()
    os.kill(process, signal.SIGKILL)
    until(lambda: is_gone(process), "it is still there")
    assert home.do("x") == (0, "cold\n", "")
    next_process, _ = home.leave()
    # Of the one that could not do so itself.
    assert not scratch.exists()
    assert json.loads(home.do("x")[1])["process"] == next_process


def test_one_that_is_told_to_end_leaves_nothing(home: Home) -> None:
    process, scratch = home.leave()
    os.kill(process, signal.SIGTERM)
    until(lambda: is_gone(process), "it is still there")
    assert not scratch.exists()
    assert [file.name for file in home.place.iterdir()] == ["lock"]


def test_with_a_command_that_is_killed_all_of_it_ends(home: Home) -> None:
    process, scratch = home.leave()
    with home.start("last") as command:
        assert home.begun() == process
        command.kill()
        until(lambda: is_gone(process), "it goes on without its command")
    assert not scratch.exists()


def test_a_command_whose_process_is_killed_fails(home: Home) -> None:
    process, _ = home.leave()
    with home.start("last") as command:
        os.kill(home.begun(), signal.SIGKILL)
        _, err = command.communicate(timeout=60)
    assert command.returncode == 1
    assert err == f"process {process}, which ran this command, has gone\n"


def test_one_that_is_killed_while_it_hands_over_harms_nobody(home: Home) -> None:
    process, _ = home.leave()
    half = json.dumps({"kind": "command"}).encode()[:5]
    for words in (b"", b"\0\0", len(half).to_bytes(4, "big"), b"\0\0\0\x20" + half, b"\xff" * 9):
        with place.connect(home.place, 5) as connection:
            connection.sendall(words)
    assert json.loads(home.do("x")[1])["process"] == process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_heard_where_the_command_is(home: Home, number: signal.Signals) -> None:
    process, _ = home.leave()
    with home.start("last") as command:
        home.begun()
        command.send_signal(number)
        out, _ = command.communicate(timeout=60)
    # SIGTERM ends a process that does not listen to it, here as everywhere.
    assert (command.returncode, out) == ((130, "interrupted\n") if number == 2 else (1, ""))
    until(lambda: is_gone(process), "it is still there")


# ---------------------------------------------------------------------------------- at a terminal


def test_a_terminal_stays_one(home: Home) -> None:
    process, _ = home.leave()
    command, terminal = at_a_terminal(
        home.command("do", "a", "x"), home.environment, home.directory
    )
    lines = all_of(terminal).splitlines()
    assert os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]) == 7
    seen = json.loads(lines[0])
    assert seen["process"] == process
    assert (seen["terminals"], seen["width"]) == ([True, True, True], WIDTH)
    assert seen["line_by_line"] == [True, True]
    assert lines[1:] == ["to stderr"]


def test_ctrl_z_and_ctrl_c(home: Home) -> None:
    process, _ = home.leave()
    command, terminal = at_a_terminal(
        home.command("do", "a", "last"), home.environment, home.directory
    )
    home.begun()
    os.write(terminal, SUSPEND)
    stopped = [psutil.STATUS_STOPPED] * 2
    until(
        lambda: [psutil.Process(one).status() for one in (command, process)] == stopped,
        "Ctrl-Z stops nobody",
    )
    os.kill(command, signal.SIGCONT)
    until(lambda: psutil.Process(process).status() != psutil.STATUS_STOPPED, "it does not go on")
    os.write(terminal, INTERRUPT)
    assert "interrupted" in all_of(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]) == 130


# ------------------------------------------------------------------------------- how long it waits


def test_it_goes_when_nobody_comes(home: Home) -> None:
    process, scratch = home.leave(idle_s=0.5)
    until(lambda: is_gone(process), "it waits for ever")
    assert not scratch.exists()


def test_it_goes_when_memory_runs_low(home: Home) -> None:
    process, _ = home.leave()
    (home.directory / "meminfo").write_text("MemAvailable: 900000 kB\n")
    until(lambda: is_gone(process), "it keeps what others need")


@pytest.mark.parametrize("file", ["program.py", "some.jar"])
def test_what_has_read_a_file_that_was_changed_is_not_used(home: Home, file: str) -> None:
    process, _ = home.leave()
    with (home.directory / file).open("a") as changed:
        changed.write("\n")
    assert home.do("x") == (0, "cold\n", "")
    until(lambda: is_gone(process), "it is of no use any more")


def test_there_is_one_at_a_time(home: Home) -> None:
    first, _ = home.leave("a")
    second, _ = home.leave("b")
    until(lambda: is_gone(first), "there are two")
    # Its like need not start.
    (home.directory / "waiting").unlink()
    command = home.command("leave", "b", str(FOREVER_S))
    subprocess.run(command, env=home.environment, cwd=home.directory, check=True, timeout=60)
    assert json.loads(home.do("x", setting="b")[1])["process"] == second


def test_whoever_is_curious_is_told_when_it_is_ready(home: Home) -> None:
    home.leave()
    assert await_ready(deadline=0) is None
    assert end_one(home.place)
    assert await_ready(deadline=0) is not None


def test_a_socket_of_somebody_else_is_not_trusted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.leave()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(place.NotThere, match="another user's"):
        place.connect(home.place, 5)


def test_what_is_no_message_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(place.NotThere, match="no message of ours"):
            place.receive(ours)
