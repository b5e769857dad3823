"""The command line as a person meets it: help, mistakes, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ottla.cli.application import NOUNS, application
from ottla.cli.main import main
from ottla.cli.reference import render_commands, render_settings
from ottla.config import BROKER_SETTINGS, TOPIC_SETTINGS


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTTLA_")]:
        monkeypatch.delenv(name)


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*path, name))


ALL_COMMANDS = [
    path for path in every_command(typer.main.get_command(application())) if path[:1] != ("config",)
]


def test_all_commands_of_the_issue_are_there() -> None:
    assert {" ".join(path) for path in ALL_COMMANDS} >= {
        "start",
        "storage format",
        "storage random-id",
        "settings list",
        "settings show",
        *(f"topics {verb}" for verb in ("create", "list", "describe", "alter", "delete")),
        "produce",
        "consume",
        *(f"groups {verb}" for verb in ("list", "describe", "reset-offsets", "delete")),
        "configs describe",
        "configs alter",
        "records delete",
        "node status",
        "version",
    }


@pytest.mark.parametrize("path", ALL_COMMANDS, ids=" ".join)
def test_help_explains_with_examples(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"ottla {' '.join(path)}".strip() in " ".join(text.split())
    assert "\x1b" not in text
    assert "bool" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["topic"], "No such command 'topic'"),
        (["topics", "create"], "Missing argument 'TOPIC...'. See `ottla topics create --help`."),
        (["topics", "lst"], "No such command 'lst'"),
        (["start", "--bogus"], "No such option: --bogus"),
        (["start", "--set", "num.partition=3"], "Did you mean num.partitions?"),
        (["start", "--node-id", "one"], "node.id is 'one', but must be a whole number."),
        (["start", "--listen", "0.0.0.0:9092"], "add --advertise HOST:9092"),
        (["start", "/nowhere.toml"], "Cannot read /nowhere.toml"),
        (["settings", "list", "--scope", "x"], "--scope is broker, topic or all"),
        (["produce", "t", "--acks", "2"], "--acks 2 is none of all, 1, 0."),
        (["produce", "t", "--compression", "rar"], "--compression rar is none of"),
        (["consume", "t", "--format", "%x"], "--format has no field %x"),
        (["consume", "t", "--offset", "x"], "--offset x is no offset"),
        (["consume", "t", "--offset", "1", "--from-beginning"], "Give one of"),
        (["consume", "t", "-g", "g", "--offset", "1"], "ottla groups reset-offsets"),
        (["groups", "reset-offsets", "g", "-t", "t"], "Give one of --to-earliest"),
        (["groups", "reset-offsets", "g", "--to-latest"], "Which topics?"),
        (["groups", "delete", "g"], "add --yes"),
        (["configs", "describe"], "Give --topic TOPIC or --broker NODE_ID"),
        (["configs", "alter", "-t", "t"], "Nothing to alter"),
        (["configs", "alter", "-t", "t", "x"], "x has no value; write NAME=VALUE."),
        (["topics", "alter", "t"], "Nothing to alter"),
        (["records", "delete", "t", "--before", "x"], "neither an offset nor latest"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ottla: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Usage: ottla" in capsys.readouterr().out


def test_bug_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("ottla.cli.settings.load", broken)
    assert main(["settings", "show"]) == 1
    assert "This is a bug: ZeroDivisionError: oh" in capsys.readouterr().err


def test_settings_list_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "list", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(BROKER_SETTINGS) + len(TOPIC_SETTINGS)
    assert {"scope", "name", "type", "default", "doc"} <= rows[0].keys()
    assert main(["settings", "list"]) == 0
    assert "num.partitions (broker, int, default 1)\n    Partitions of" in capsys.readouterr().out


def test_settings_show_says_where_values_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.properties"
    file.write_text("node.id=9\n")
    monkeypatch.setenv("OTTLA_FETCH_MAX_BYTES", "2048")
    arguments = ["--origin", "--changed", "--json", "--set", "num.partitions=3"]
    assert main(["settings", "show", str(file), *arguments]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        {"name": "node.id", "value": "9", "origin": f"file {file}"},
        {"name": "num.partitions", "value": "3", "origin": "--set"},
        {
            "name": "fetch.max.bytes",
            "value": "2048",
            "origin": "environment OTTLA_FETCH_MAX_BYTES",
        },
    ]


def test_version_is_machine_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert {"ottla", "python", "librdkafka"} <= json.loads(capsys.readouterr().out).keys()


def run_script(script: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_parsing_start_imports_no_heavy_package() -> None:
    script = (
        "import sys\n"
        "from ottla.cli.main import main\n"
        "assert main(['start', '--set', 'bogus=1']) == 2\n"
        "heavy = {'rich', 'fastapi', 'confluent_kafka', 'typer', 'tomllib', 'asyncio'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    assert run_script(script).strip() == "[]"


def test_the_old_name_of_settings_still_works_and_is_shown_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "show", "--set", "num.partitions=3", "--changed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "num.partitions", "value": "3"}
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.split()
    assert {"settings", "configs"} <= {*shown}
    assert "config" not in shown
    assert "# ottla config\n" not in render_commands()


def test_completion_knows_nouns_and_verbs() -> None:
    script = "import sys; sys.argv = ['ottla']; from ottla.cli.main import run; run()"
    shown = run_script(
        script, _OTTLA_COMPLETE="complete_bash", COMP_WORDS="ottla topics ", COMP_CWORD="2"
    )
    assert shown.split() == ["create", "list", "describe", "alter", "delete"]


def test_references_name_everything() -> None:
    settings, commands = render_settings(), render_commands()
    for name in (*BROKER_SETTINGS, *TOPIC_SETTINGS):
        assert f"| `{name}` |" in settings
    for path in ALL_COMMANDS[1:]:
        assert f"# ottla {' '.join(path)}\n" in commands
    assert set(NOUNS) == {path[0] for path in ALL_COMMANDS[1:]}
