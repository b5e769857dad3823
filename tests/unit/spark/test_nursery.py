"""Pythons of the nursery, asked for as Spark does it, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ottla.spark.stand_in import ADDRESS
from ottla.spark.workers import start_nursery
from scenarios.polling import until

# What Spark sets for all of its Pythons.
LIKE_SPARK = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    found = start_nursery(tmp_path_factory.mktemp("n"))
    assert found
    return {**os.environ, **found, **LIKE_SPARK}


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
    """The children of this process's nurseries."""
    own = psutil.Process().children()
    nurseries = [child for child in own if "ottla.spark.nursery" in child.cmdline()]
    return [child for nursery in nurseries for child in nursery.children()]


def test_daemons_of_spark_are_forked_where_all_is_imported(
    nursery: Mapping[str, str], tmp_path: Path
) -> None:
    with daemon(nursery, tmp_path):
        [own] = forked()
        assert own.cwd() == str(tmp_path)
        assert own.num_threads() == 1
        assert any("pyarrow" in one.path for one in own.memory_maps())


def test_spark_ends_a_python_by_ending_what_it_has_started(nursery: Mapping[str, str]) -> None:
    with daemon(nursery) as process:
        [own] = forked()
        process.send_signal(signal.SIGTERM)
        until(lambda: not own.is_running(), "the daemon stays", 60)
        assert process.wait(60) != 0


@pytest.mark.parametrize(
    "other", [{"PYTHONHASHSEED": "7"}, {"OMP_NUM_THREADS": "2"}, {ADDRESS: "/nowhere"}]
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


def test_the_nursery_ends_with_its_driver(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, os, psutil; from ottla.spark.workers import start_nursery\n"
        "start_nursery(pathlib.Path(sys.argv[1])); print(psutil.Process().children()[0].pid)\n"
        "sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True)
    pid = int(done.stdout)
    until(lambda: not psutil.pid_exists(pid), "the nursery stays", 60)
