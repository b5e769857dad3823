"""The commands from end to end, as a person types them: one process, with a Spark of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.pipelines.sources.dead_letters import OF_TOPIC
from ottla.testing import Broker
from scenarios.polling import until
from spark.conftest import MakeTopic
from spark.kit import session
from spark.kit.messages import messages_in
from spark.kit.pipeline_sources import Message, send

PATIENCE_S = 280.0

FILE = """\
version: 1
name: ticking
trigger: 1 second
sources:
  ticks: {rate: 50}
views:
  even: |
    SELECT value
    FROM ticks
    WHERE value % 2 = 0
  slow: {python: slowly:slowly}
sinks:
  out: {from: slow, files: out/, format: json, options: {password: "${MY_PASSWORD}"}}
tests:
  evens: {given: {ticks: ticks.jsonl}, expect: {even: even.jsonl}}
"""

# A batch lasts, in Spark's Python workers, until the test lets it end.
SLOWLY = """\
import time
from pathlib import Path

HERE = Path(__file__).parent

def slowly(even):
    def wait(batches):
        for batch in batches:
            (HERE / "came").touch()
            deadline = time.monotonic() + 120
            while not (HERE / "open").exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield batch
    return even.mapInArrow(wait, "value bigint")
"""

# One JVM for all of them: a start takes longer than what they do.
SCRIPT = """\
import json, sys
from ottla.cli.main import main
for arguments in json.loads(sys.argv[1]):
    print("#", *arguments, flush=True)
    print("#", *arguments, file=sys.stderr, flush=True)
    code = main(["pipeline", *arguments])
    print("= exit code", code, flush=True)
"""


def commands(file: str) -> list[list[str]]:
    """What is typed; the last goes on until it is interrupted."""
    return [
        ["validate", file],
        ["validate", "wrong.yaml", "--json"],
        ["test", file],
        ["test", file, "--set", "tests.evens.expect.even=odd.jsonl"],
        ["run", file, "--metrics", "0", "--master", "local[2]"],
    ]


def parts(text: str) -> list[str]:
    """What each command has written."""
    return text.split("# ")[1:]


@pytest.mark.seconds(300)
def test_validate_test_and_run_until_ctrl_c(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE)
    (tmp_path / "slowly.py").write_text(SLOWLY)
    (tmp_path / "wrong.yaml").write_text(FILE.replace("FROM ticks", "FROM tocks"))
    rows = [{"timestamp": "2026-01-01T00:00:00Z", "value": value} for value in range(4)]
    (tmp_path / "ticks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "even.jsonl").write_text('{"value": 0}\n{"value": 2}\n')
    (tmp_path / "odd.jsonl").write_text('{"value": 1}\n{"value": 2}\n')
    out, err = tmp_path / "stdout", tmp_path / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(commands("p.yaml"))],
            cwd=tmp_path,
            env={**os.environ, **session.environment(), "MY_PASSWORD": "hunter22"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            # A terminal's Ctrl-C reaches all processes of the command.
            start_new_session=True,
        )
    try:

        def seen(holds: Callable[[], bool], what: str) -> None:
            until(lambda: process.poll() is not None or holds(), what, PATIENCE_S)
            assert process.poll() is None, out.read_text() + err.read_text()

        seen((tmp_path / "came").exists, "no batch has begun")
        os.killpg(process.pid, signal.SIGINT)
        seen(lambda: "stopping" in out.read_text(), "nobody has heard Ctrl-C")
        (tmp_path / "open").touch()
        code = process.wait(PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    told = f"{out.read_text()}\n{err.read_text()}"
    assert code == 0, told
    assert "hunter22" not in told
    left = {path.name for path in tmp_path.iterdir()}
    assert not left & {"spark-warehouse", "derby.log", "metastore_db"}
    check(parts(out.read_text()), parts(err.read_text()), tmp_path)


def check(out: list[str], err: list[str], directory: Path) -> None:
    codes = [text.splitlines()[-1].removeprefix("= exit code ") for text in out]
    assert codes == ["0", "2", "0", "1", "130"], out
    # validate
    assert "p.yaml is valid: 1 source, 2 views, 1 sink, 1 test." in err[0]
    problem = json.loads(out[1].splitlines()[1])
    assert (problem["type"], problem["file"]) == ("problem", "wrong.yaml")
    assert (problem["line"], problem["column"]) == (9, 10)
    assert "tocks" in problem["text"]
    assert "ticks" in problem["text"]
    # test
    assert out[2].splitlines()[1].startswith("ok")
    assert out[3].splitlines()[1].startswith("FAILED")
    # run
    rows = [json.loads(line) for line in out[4].splitlines()[1:-1]]
    batches = [row for row in rows if row["type"] == "batch"]
    assert [row["batch"] for row in batches] == list(range(len(batches)))
    kinds = [row["type"] for row in rows if row["type"] != "batch"]
    assert kinds == ["started", "stopping", "stopped"], rows
    assert rows[-2]["type"] == "batch", "the batch at work was finished"
    assert rows[-2]["rows_out"] > 0
    assert "Metrics: http://127.0.0.1:" in err[4]
    assert "Finishing the batch; Ctrl-C again ends at once." in err[4]
    # Every batch that was reported is in the sink, and no other.
    files = [json.loads(line)["path"] for log in logs(directory) for line in log]
    written = sum(len(Path(file.removeprefix("file://")).read_text().split()) for file in files)
    assert written == sum(row["rows_out"] for row in batches)
    assert (directory / ".ottla" / "ticking" / "out" / "offsets" / "0").exists()


def logs(directory: Path) -> list[list[str]]:
    """Spark's list of files that count, batch by batch, without its first line (a version)."""
    found = sorted((directory / "out" / "_spark_metadata").glob("[0-9]*"))
    return [log.read_text().splitlines()[1:] for log in found if log.suffix != ".compact"]


def test_repair_shows_asks_and_puts_back(
    broker: Broker, topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders, dead = topic(), topic()
    file = tmp_path / "p.yaml"
    file.write_text(
        f"version: 1\nname: shop\nbootstrap: {broker.bootstrap}\nsources:\n"
        f"  orders: {{topic: {orders}, schema: id INT, bad_records: {{topic: {dead}}}}}\n"
    )
    for offset, value in enumerate([b'{"id": 1}', b"no JSON"]):
        told = [orders, "0", f"{offset}", "2026-01-31T12:00:00.250Z", "why", "shop", "orders"]
        headers = [(name, text.encode()) for name, text in zip(OF_TOPIC, told, strict=True)]
        send(broker.bootstrap, dead, Message(value, b"k", headers))

    assert main(["pipeline", "repair", str(file)]) == 2
    assert "Nobody is there to ask; add --yes" in capsys.readouterr().err
    assert main(["pipeline", "repair", str(file), "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == f"orders: {orders}-0 at offset 0: put back (why)"
    assert captured.out.splitlines()[1].startswith(f"orders: {orders}-0 at offset 1: still bad (")
    assert captured.err == "1 dead letter would be put back; 1 still bad.\n"
    assert messages_in(broker.bootstrap, orders) == []

    assert main(["pipeline", "repair", str(file), "--yes", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[0])["fate"] == "put back"
    assert captured.err == "1 dead letter put back; 1 still bad.\n"
    assert [found.value for found in messages_in(broker.bootstrap, orders)] == [b'{"id": 1}']
