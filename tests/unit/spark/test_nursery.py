"""Pythons of the nursery, asked for as Spark does it, without Spark."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from ottla.spark.startup.nursery import COMPILED
from ottla.spark.startup.nursery_process import start_nursery
from ottla.spark.startup.stand_in import ADDRESS
from scenarios.polling import until

# What Spark sets for the Pythons of tasks.
LIKE_SPARK = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        # Spark sets it for its Pythons, and nobody for the driver.
        patch.delenv("PYTHONUNBUFFERED", raising=False)
        return {**os.environ, **started(tmp_path_factory.mktemp("n")), **LIKE_SPARK}


def started(directory: Path) -> Mapping[str, str]:
    """A nursery that has imported all: it answers what is no request, and closes."""
    found = start_nursery(directory)
    assert found
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(found[ADDRESS])
        connection.sendall(bytes(4))
        assert connection.recv(1) == b""
    return found


@contextmanager
def daemon(
    environment: Mapping[str, str], directory: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """PySpark's daemon, which has told its port; at the end it is told to end, as the JVM does."""
    with subprocess.Popen(
        [environment["PYSPARK_PYTHON"], "-m", "pyspark.daemon", "pyspark.worker"],
        env=environment,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert int.from_bytes(process.stdout.read(4), "big") > 0
        yield process
    until(lambda: not forked(), "the daemon stays", 60)


def forked() -> list[psutil.Process]:
    return [child for nursery in nurseries() for child in nursery.children()]


def nurseries() -> list[psutil.Process]:
    """Of this process."""
    own = psutil.Process().children()
    alive = [child for child in own if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "ottla.spark.startup.nursery" in child.cmdline()]


def test_daemons_of_spark_are_forked_where_all_is_imported(
    nursery: Mapping[str, str], tmp_path: Path
) -> None:
    with daemon(nursery, tmp_path):
        [own] = forked()
        assert own.cwd() == str(tmp_path)
        # Not the only nursery, perhaps: other tests of this process may have had one.
        parent = own.parent()
        assert parent is not None
        assert parent.num_threads() == 1, "others would not be forked"
        assert any("pyarrow" in one.path for one in own.memory_maps())


def test_pythons_that_plan_are_forked_too(nursery: Mapping[str, str]) -> None:
    """Of which Spark says neither how many threads nor which seed: only of those for tasks."""
    said = {name: value for name, value in nursery.items() if name not in LIKE_SPARK}
    with daemon(said):
        assert len(forked()) == 1


def test_spark_ends_a_python_by_ending_what_it_has_started(nursery: Mapping[str, str]) -> None:
    with daemon(nursery) as process:
        [own] = forked()
        process.send_signal(signal.SIGTERM)
        until(lambda: not own.is_running(), "the daemon stays", 60)
        assert process.wait(60) != 0


@pytest.mark.parametrize(
    "other",
    [
        {"PYTHONHASHSEED": "7"},
        {"OMP_NUM_THREADS": "2"},
        {"NUMBA_DISABLE_JIT": "1"},
        {ADDRESS: "/nowhere"},
    ],
)
def test_where_the_nursery_does_not_fit_the_real_python_is_started(
    nursery: Mapping[str, str], other: Mapping[str, str]
) -> None:
    with daemon({**nursery, **other}) as process:
        assert forked() == []
        command = psutil.Process(process.pid).cmdline()
        assert command[1:] == ["-m", "pyspark.daemon", "pyspark.worker"]


def test_other_programs_are_run_by_the_real_python(nursery: Mapping[str, str]) -> None:
    script = "import sys; print(sys.executable, sys.flags.no_site, sys.argv[1:])"
    command = [nursery["PYSPARK_PYTHON"], "-c", script, "a"]
    done = subprocess.run(command, env=nursery, capture_output=True, text=True)
    assert done.stdout.split() == [sys.executable, "0", "['a']"]


@pytest.mark.parametrize(
    ("chosen", "stays"), [(None, False), (sys.executable, False), ("/opt/bin/python3", True)]
)
def test_another_python_that_the_user_has_chosen_stays(
    chosen: str | None, stays: bool, tmp_path: Path
) -> None:
    script = (
        "import os, ottla.spark; ottla.spark.quick_start(); print(os.environ['PYSPARK_PYTHON'])"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("PYSPARK_PYTHON", None)
    environment |= {"PYSPARK_PYTHON": chosen} if chosen else {}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    found = Path(done.stdout.strip())
    assert (tmp_path in found.parents) == (not stays)
    assert not [*tmp_path.iterdir()]


def test_the_nursery_ends_with_its_driver(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, os, psutil\n"
        "from ottla.spark.startup.nursery_process import start_nursery\n"
        "start_nursery(pathlib.Path(sys.argv[1])); print(psutil.Process().children()[0].pid)\n"
        "sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True)
    pid = int(done.stdout)
    until(lambda: not psutil.pid_exists(pid), "the nursery stays", 60)


# What a worker finds and does, told as JSON; PySpark's daemon runs it in place of its own.
PROBE = """
import json, os, random, sys, time
import numpy

def main(infile, outfile):
    print("printed by a function")
    told = {
        "numbers": [float(numpy.random.rand()), random.random()],
        "path": sys.path,
        "zone": time.tzname,
        "cwd": os.getcwd(),
        "has kernels": "ottla.spark.decoding.rows_numba" in sys.modules,
    }
    outfile.write(json.dumps(told).encode() + b"\\n")
    outfile.flush()
"""


def probe(environment: Mapping[str, str], home: Path) -> tuple[list[dict[str, Any]], str]:
    """What two workers of one daemon tell, and what they print."""
    (home / "pyspark_probe.py").write_text(PROBE)
    paths = [str(home), *filter(None, [environment.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHON_WORKER_FACTORY_SECRET": "s"}
    told = []
    with subprocess.Popen(
        [environment["PYSPARK_PYTHON"], "-m", "pyspark.daemon", "pyspark_probe"],
        env={**environment, **own, "PYTHONUNBUFFERED": "YES"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int.from_bytes(process.stdout.read(4), "big")
        for _ in range(2):
            with (
                socket.create_connection(("127.0.0.1", port), 60) as connection,
                connection.makefile("rwb") as stream,
            ):
                stream.read(4)
                stream.write(b"\0\0\0\1s")
                stream.flush()
                assert stream.read(6) == b"\0\0\0\2ok"
                told.append(json.loads(stream.readline()))
        process.stdin.close()
        printed = process.stdout.read().decode()
    return told, printed


def test_forked_workers_are_as_those_of_the_real_python(
    nursery: Mapping[str, str], tmp_path: Path
) -> None:
    environment = {**nursery, "TZ": "Asia/Tokyo"}
    real = {**environment, "PYSPARK_PYTHON": sys.executable}
    (first, second), printed = probe(environment, tmp_path)
    (like, _), printed_there = probe(real, tmp_path)
    assert printed == printed_there == 2 * "printed by a function\n"
    for name in ("path", "zone", "cwd"):
        assert first[name] == like[name]
    for one, other in zip(first["numbers"], second["numbers"], strict=True):
        assert one != other, "each draws its own numbers"


def test_a_path_that_only_the_driver_has_is_not_the_workers(
    nursery: Mapping[str, str], tmp_path: Path
) -> None:
    """As `spark.executorEnv.PYTHONPATH` says it."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", before(tmp_path / "a", tmp_path / "b"))
        found = started(tmp_path)
    (told, _), _ = probe({**nursery, **found}, tmp_path)
    assert not {str(tmp_path / "a"), str(tmp_path / "b")} & set(told["path"])


def test_nobody_waits_for_the_kernels_machine_code(
    nursery: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling takes longer than the ten seconds that Spark gives to the Python of a stream."""
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    monkeypatch.setenv("NUMBA_CACHE_DIR", cache["NUMBA_CACHE_DIR"])
    found = []
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        (told, _), _ = probe({**nursery, **started(directory), **cache}, tmp_path)
        found.append(told["has kernels"])
        until(lambda: [*tmp_path.glob(f"cache/ottla/*/{COMPILED}")], "nothing is compiled", 120)
    assert found == [False, True]


def test_nothing_is_forked_where_something_has_started_a_thread(
    nursery: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", before(tmp_path))
    with daemon({**nursery, **start_nursery(tmp_path)}):
        assert forked() == []


def test_a_python_that_is_ended_twice_is_not_started_again(
    nursery: Mapping[str, str], tmp_path: Path
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "n"))
        listening.listen()
        command = [nursery["PYSPARK_PYTHON"], "-m", "pyspark.daemon"]
        environment = {**nursery, ADDRESS: str(tmp_path / "n")}
        with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as process:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(ended.pid.to_bytes(4, "big"))
                until(lambda: _catches(process.pid, signal.SIGTERM), "no handler", 60)
                process.terminate()
                assert process.wait(60) == 128 + signal.SIGTERM


def before(*paths: Path) -> str:
    """Paths in front of those that this process has been given."""
    return os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)
