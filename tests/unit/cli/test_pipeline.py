"""`ottla pipeline` up to where Spark begins: mistakes, signals, what is printed and what is not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from ottla.cli.failures import CommandFailed, ReaderGone, WrongUsage
from ottla.cli.main import main
from ottla.cli.pipeline_run import (
    Printer,
    Stopping,
    asking_broker,
    checkpoint_of,
    failures_told,
    metrics_address,
)
from ottla.pipelines.language.json_schema import json_schema
from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed, Place, Problem
from ottla.pipelines.running.reports import BatchReport, Event

CASE = "tests.totals={given: {orders: a}, expect: {orders: b}}"
ON_YARN = ["run", "{shop}", "--master", "yarn", "--checkpoint", "s3a://bucket/shop"]
SHOP = """\
version: 1
name: shop
sources:
  orders: {topic: orders, format: string, bad_records: {topic: dead}}
sinks:
  out: {from: orders, topic: copy}
kafka: {sasl.password: hunter22}
"""
BAD = """\
version: 1
name: shop
sources:
  orders: {topic: orders, fromat: string}
"""


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTTLA_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    return file


@pytest.fixture
def pipeline(shop: Path) -> Pipeline:
    return read_pipeline(shop, environment={})


COMMANDS = ("test", "validate", "run", "repair")

# ---------------------------------------------------------------------------------- a wrong file


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_file_is_told_line_by_line_with_exit_code_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    assert main(["pipeline", command, str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"{file}:4:3: format: json in sources.orders needs the key schema; add `schema: id string, "
        "amount decimal(10,2)`",
        f"{file}:4:27: the key fromat is unknown in sources.orders; did you mean format?",
        f"ottla: {file} has 2 problems.",
    ]


def test_validate_tells_programs_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    assert main(["pipeline", "validate", str(file), "--json"]) == 2
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == {
        "type": "problem",
        "file": str(file),
        "line": 4,
        "column": 27,
        "text": "the key fromat is unknown in sources.orders; did you mean format?",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_not_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", command, "gone.yaml"]) == 2
    assert "gone.yaml is not there; check the pipeline file's name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run"], "Missing argument 'FILE'. See `ottla pipeline run --help`."),
        (["runn", "x"], "No such command 'runn'"),
        (["run", "{shop}", "--set", "name"], "--set name has no value; write --set NAME=VALUE."),
        (["run", "{shop}", "--metrics", "x"], "--metrics x is no port and no HOST:PORT"),
        (["run", "{shop}", "--master", "spark://head:7077"], "--checkpoint s3a://"),
        (["run", "{shop}", "--set", "spark.spark.master=yarn"], "--checkpoint s3a://"),
        (["run", "{shop}", "--environment", "e.tar.gz"], "--environment is for a cluster"),
        (
            [*ON_YARN, "--environment", "e.tar.gz"],
            "There is no e.tar.gz; `ottla pipeline pack e.tar.gz` makes it.",
        ),
        (["repair", "{shop}"], "add --yes"),
        (["test", "{shop}"], "shop.yaml has no tests; write some below `tests`."),
        (
            ["test", "{shop}", "totls", "--set", CASE],
            "shop.yaml has no test totls; did you mean totals?",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", *(each.replace("{shop}", str(shop)) for each in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ottla: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err


def test_an_override_that_is_wrong_is_told_by_its_name(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--set", "sources.orders.strat=latest"]
    assert main(["pipeline", "run", str(shop), *arguments]) == 2
    line = "--set sources.orders.strat: the key strat is unknown in sources.orders; did you mean "
    assert capsys.readouterr().err.startswith(line)


def test_a_file_without_sinks_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nname: p\nsources: {a: {rate: 1}}\n")
    assert main(["pipeline", "run", str(file)]) == 2
    assert "has no sinks, so there is nothing to run" in capsys.readouterr().err


def test_neither_help_nor_a_wrong_file_needs_spark(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    script = (
        "import sys; from ottla.cli.main import main; "
        f"assert main(['pipeline', 'validate', {str(file)!r}]) == 2; "
        "assert main(['pipeline', 'run', '--help']) == 0; "
        "print(sorted({'pyspark', 'pyarrow', 'pandas'} & sys.modules.keys()), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("package", "command"), [("yaml", "validate"), ("pyspark", "test")])
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    package: str, command: str, shop: Path
) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None; from ottla.cli.main import main; "
        f"sys.exit(main(['pipeline', {command!r}, {str(shop)!r}, '--set', {CASE!r}]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 1
    assert (
        result.stderr == f"ottla: {package} is not installed; run: pip install 'ottla[pipelines]'\n"
    )


def test_schema_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


# ------------------------------------------------------------------------------- what is printed


def test_no_line_has_a_secret(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        printer = Printer(pipeline, as_json=as_json)
        printer.words("logged in with hunter22")
        printer.say("and once more hunter22")
        printer.problem(Problem("hunter22 is wrong", Place(Path("p.yaml"), 1, 1)))
        printer.report(Event(kind="note", text="it was hunter22", at="2026-01-01T00:00:00.000Z"))
        printer.row({"reason": "hunter22"}, "reason hunter22")
    captured = capsys.readouterr()
    assert "hunter22" not in captured.out + captured.err
    assert (captured.out + captured.err).count("***") == 10


def test_json_stays_json_whatever_a_secret_looks_like(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = replace(pipeline, secrets=frozenset({'a"b\\c\nd'}))
    text = 'it was a"b\\c\nd, or password="x y" perhaps'
    Printer(odd, as_json=True).row({"text": text, "more": {"inside": text}, "n": 1}, "")
    hidden = "it was ***, or password=*** perhaps"
    assert json.loads(capsys.readouterr().out) == {
        "text": hidden,
        "more": {"inside": hidden},
        "n": 1,
    }


@pytest.mark.parametrize(
    "failure",
    [
        PipelineFailed("no login with hunter22"),
        BadPipeline([Problem("no table for hunter22")]),
        RuntimeError("bug with hunter22"),
    ],
)
def test_no_failure_has_a_secret(
    failure: Exception, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandFailed) as caught, failures_told(pipeline):
        raise failure
    told = str(caught.value) + capsys.readouterr().err
    assert "hunter22" not in told
    assert "***" in told


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (PipelineFailed("lost the broker"), CommandFailed, "lost the broker"),
        (BadPipeline([Problem("x"), Problem("y")]), WrongUsage, "shop.yaml has 2 problems."),
        (
            ModuleNotFoundError(name="fastavro"),
            CommandFailed,
            "pip install 'ottla[pipelines,avro]'",
        ),
        (ModuleNotFoundError("No module named 'mine'", name="mine"), ModuleNotFoundError, "'mine'"),
        (ZeroDivisionError("oh"), ZeroDivisionError, "oh"),
        (typer.Exit(1), typer.Exit, ""),
        (ReaderGone(), ReaderGone, ""),
    ],
)
def test_failures_have_their_exit_codes(
    failure: Exception, kind: type[Exception], text: str, pipeline: Pipeline
) -> None:
    with pytest.raises(kind) as caught, failures_told(pipeline):
        raise failure
    assert type(caught.value) is kind
    assert str(caught.value).endswith(text)


def test_flows_are_aligned_on_a_terminal_and_objects_elsewhere(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = BatchReport(flow="out", batch=7, at="2026-01-01T10:11:12.000Z", rows_in=3)
    Printer(pipeline, as_json=False).report(batch)
    assert capsys.readouterr().out == f"{batch.line(len('out'))}\n"
    Printer(pipeline, as_json=True).report(batch)
    assert json.loads(capsys.readouterr().out) == batch.json()


def test_that_a_run_stops_is_said_once(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a person by whoever takes the signal; to a program among the batches."""
    stopping = Event(kind="stopping", text="stopping", at="2026-01-01T00:00:00.000Z")
    Printer(pipeline, as_json=False).report(stopping)
    assert capsys.readouterr().out == ""
    Printer(pipeline, as_json=True).report(stopping)
    assert json.loads(capsys.readouterr().out) == stopping.json()


def test_a_run_whose_reader_has_left_goes_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches go on being written though `| head` has ended; the command ends well."""

    def gone(_: bytes) -> None:
        raise ReaderGone

    monkeypatch.setattr("ottla.cli.output.write", gone)
    printer = Printer(pipeline, as_json=True)
    printer.report(Event(kind="note", text="x", at="2026-01-01T00:00:00.000Z"))
    with pytest.raises(ReaderGone):
        printer.check_reader()


# --------------------------------------------------------------------------- where, and how long


def test_progress_is_kept_beside_the_file_unless_told_otherwise(
    pipeline: Pipeline, shop: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = str(shop.parent / ".ottla" / "shop")
    assert checkpoint_of(pipeline, None, None) == beside
    assert checkpoint_of(pipeline, None, "local[4]") == beside
    monkeypatch.chdir(tmp_path)
    assert checkpoint_of(pipeline, "here", None) == str(tmp_path / "here")
    assert checkpoint_of(pipeline, "s3a://bucket/x", "yarn") == "s3a://bucket/x"
    assert checkpoint_of(replace(pipeline, file=Path("shop.yaml")), None, None) == beside
    with pytest.raises(WrongUsage, match="say where progress is kept"):
        checkpoint_of(pipeline, None, "spark://head:7077")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("9404", ("127.0.0.1", 9404)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9404", ("0.0.0.0", 9404)),
        ("[::1]:9404", ("::1", 9404)),
    ],
)
def test_where_metrics_are_served(text: str | None, expected: tuple[str, int] | None) -> None:
    assert metrics_address(text) == expected


@pytest.mark.parametrize("text", ["", "x", "70000", "host:", ":9404", "-1", "٣"])
def test_where_metrics_cannot_be_served(text: str) -> None:
    with pytest.raises(WrongUsage, match="is no port and no HOST:PORT"):
        metrics_address(text)


@pytest.fixture
def _usual_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_usual_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_the_batch_the_second_does_not_the_third_ends_it_all(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with Stopping() as stopping:
        os.kill(os.getpid(), number)
        assert stopping.stop.wait(10)
        assert not stopping.was_cut_short
        assert stopping.exit_code == (130 if number == signal.SIGINT else 0)
        assert capfd.readouterr().err == "Finishing the batch; Ctrl-C again ends at once.\n"
        os.kill(os.getpid(), number)
        assert stopping.stop_now.wait(10)
        assert stopping.was_cut_short
        assert stopping.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.usefixtures("_usual_signals")
def test_signals_go_back_to_whoever_had_them() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stopping():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_the_broker_is_asked_while_spark_starts(pipeline: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        broker.settimeout(60)
        port = broker.getsockname()[1]
        topics = asking_broker(replace(pipeline, bootstrap=f"127.0.0.1:{port}", kafka={}))
        # Before anybody wants the answer; and this is one that hangs up.
        broker.accept()[0].close()
    assert topics() is None
