"""Java's archive of Spark's classes (AppCDS): read and checked once, not at every start.

An archive holds for one Java, one Spark and one place where it is installed. It is made in the
background when a command is over for which there was none, and used from then on; Java looks for
itself whether it still fits, and goes without it where it does not.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.launch.jvm import SUBMIT_ARGUMENTS
from ottla.spark.caches import private_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SWITCH: Final = "OTTLA_CLASS_ARCHIVE"
PREFIX: Final = "classes"
NICENESS: Final = 19
TIMEOUT_S: Final = 300.0
# In which neither a shell's words nor Java's lists of archives end.
PLAIN_PATH: Final = re.compile(r"[\w@%+=,./-]+", re.ASCII)
# One that does not fit is no news for a person.
QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def java_options(home: Path) -> str:
    """For a JVM of this Spark: the archive where there is one, else nothing."""
    archive = archive_of(home)
    if archive is None or not archive.exists() or not archive.stat().st_size:
        return ""
    return f"-Xshare:auto -XX:SharedArchiveFile={archive} {QUIET}"


def archive_of(home: Path) -> Path | None:
    """Where it is or would be; None when it is switched off, or nothing can be kept."""
    cache = None if os.environ.get(SWITCH) == "off" else private_directory("spark")
    java = _java()
    if cache is None or java is None or not PLAIN_PATH.fullmatch(str(cache)):
        return None
    from pyspark import __version__

    found = java.stat()
    # What is set for Spark is on Java's path of classes.
    place = f"{home} {java} {os.environ.get('SPARK_CONF_DIR', '')}"
    state = f"{__version__} {_installed_at(home)} {found.st_size} {found.st_mtime_ns}"
    return cache / f"{PREFIX}-{_short(place)}-{_short(state)}.jsa"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _installed_at(home: Path) -> int:
    """Changes with every jar that comes or goes, and when Spark is installed again."""
    try:
        return (home / "jars").stat().st_mtime_ns
    except OSError:
        return 0


def _java() -> Path | None:
    """The one that spark-submit takes."""
    java_home = os.environ.get("JAVA_HOME")
    named = Path(java_home, "bin", "java") if java_home else shutil.which("java")
    path = Path(named).resolve() if named else None
    return path if path is not None and path.exists() else None


def make_in_background(home: Path) -> None:
    """Starts it and goes: it outlives this command, and never concerns it."""
    archive = archive_of(home)
    if archive is None or archive.exists():
        return
    with suppress(OSError):
        _start_making(home, archive, NICENESS)


def make_now(home: Path, archive: Path) -> bool:
    """Whether there is one in the end, made here or by somebody else at the same time."""
    making = _start_making(home, archive, 0)
    try:
        making.wait(2 * TIMEOUT_S)
    except BaseException:
        # With its JVM, and for a Ctrl-C that it does not see.
        os.killpg(making.pid, signal.SIGTERM)
        raise
    with archive.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    return bool(java_options(home))


def _start_making(home: Path, archive: Path, niceness: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(home), str(archive), str(niceness)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=archive.parent,
        start_new_session=True,
    )


def make(home: Path, archive: Path) -> None:
    """One at a time; whole or not at all, and no second time after a failure."""
    with archive.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if archive.exists():
            return
        scratch = archive.with_suffix(".making")
        # Of one that was killed.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        half = scratch / "half.jsa"
        is_whole = False
        try:
            is_whole = _has_ended(_run_and_archive(home, scratch, half))
        finally:
            if not is_whole:
                half.unlink(missing_ok=True)
            # An empty one says that it was tried.
            half.touch()
            half.rename(archive)
            shutil.rmtree(scratch, ignore_errors=True)
            _remove_others(archive)


def _remove_others(archive: Path) -> None:
    """Of the same place in an earlier state: nobody takes them any more, and they are large."""
    place = archive.stem.rpartition("-")[0]
    for other in archive.parent.glob(f"{place}-*.jsa"):
        if other != archive:
            other.unlink(missing_ok=True)


def _has_ended(jvm: subprocess.Popen[bytes]) -> bool:
    try:
        jvm.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        return False
    return True


def _run_and_archive(home: Path, directory: Path, archive: Path) -> subprocess.Popen[bytes]:
    """Rehearses a pipeline; the JVM, told to end, which writes down what it has loaded."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from ottla.pipelines.launch.rehearsal import rehearse

    # What is loaded for one command is not for all.
    os.environ.pop(SUBMIT_ARGUMENTS, None)
    os.environ["SPARK_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder: Any = SparkSession.builder
    spark: SparkSession = (
        builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={archive}")
        .getOrCreate()
    )
    gateway: Any = SparkContext._gateway
    with suppress(Exception):
        rehearse(spark, directory)
    with suppress(Exception):
        spark.stop()
    gateway.shutdown()
    jvm: subprocess.Popen[bytes] = gateway.proc
    if jvm.stdin is not None:
        jvm.stdin.close()
    return jvm


def main() -> None:
    os.nice(int(sys.argv[3]))
    # Whatever it hangs at; the JVM ends with its Python.
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(1))
    signal.alarm(int(2 * TIMEOUT_S))
    make(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
