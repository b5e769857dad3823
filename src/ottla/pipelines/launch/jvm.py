"""Spark's JVM, started without its settings in the list of processes.

PySpark hands every setting to spark-submit as an argument, which all users of a machine can read;
passwords are among them. Here they are in files that only this user reads, and that are gone when
the JVM is up.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ottla.pipelines.language.problems import PipelineFailed

JAVA_OPTIONS: Final = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
PROPERTIES_FILE: Final = "--properties-file"
# Without it a file of properties takes the place of conf/spark-defaults.conf.
ALSO_DEFAULTS: Final = "--load-spark-defaults"
QUOTE: Final = '"'
ESCAPED_QUOTE: Final = r"\""


def start_jvm(settings: Mapping[str, str]) -> None:
    """Starts it where this process has none; one that runs is given its settings call by call."""
    from pyspark import SparkContext

    # PySpark has no public call that starts the JVM alone.
    if SparkContext._gateway is not None:
        return
    with submit_arguments(settings, os.environ.get(SUBMIT_ARGUMENTS)) as arguments:
        before = os.environ.get(SUBMIT_ARGUMENTS)
        os.environ[SUBMIT_ARGUMENTS] = arguments
        try:
            SparkContext._ensure_initialized()
        finally:
            if before is None:
                del os.environ[SUBMIT_ARGUMENTS]
            else:
                os.environ[SUBMIT_ARGUMENTS] = before


@contextmanager
def submit_arguments(settings: Mapping[str, str], given: str | None) -> Iterator[str]:
    """For PYSPARK_SUBMIT_ARGS, with what the user has there; its files are there until the end."""
    arguments = shlex.split(given) if given else ["pyspark-shell"]
    theirs, arguments = _without_properties(arguments)
    # The directory is the user's alone, so a start that is killed shows nobody anything.
    with tempfile.TemporaryDirectory(prefix="ottla-start-") as name:
        directory = Path(name)
        ours = dict(settings)
        for option in JAVA_OPTIONS:
            if ours.get(option):
                file = _write(directory / option, _java_arguments(option, ours[option]))
                # Spark's launcher splits it as a shell does.
                ours[option] = shlex.quote(f"@{file}")
        # In a file of properties the last line about a setting is the one that counts.
        lines = theirs.read_text(encoding="utf-8") + "\n\n" if theirs else ""
        lines += "".join(f"{_key(name)}={_value(text)}\n" for name, text in ours.items())
        more = [PROPERTIES_FILE, str(_write(directory / "spark.properties", lines))]
        if not theirs and ALSO_DEFAULTS not in arguments:
            more.append(ALSO_DEFAULTS)
        yield shlex.join([*more, *arguments])


def _without_properties(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """The user's own file of properties, since spark-submit takes only one; and the rest."""
    found: Path | None = None
    rest: list[str] = []
    each = iter(arguments)
    for one in each:
        if one == PROPERTIES_FILE:
            found = Path(next(each, ""))
        elif one.startswith(f"{PROPERTIES_FILE}="):
            found = Path(one.partition("=")[2])
        else:
            rest.append(one)
    return found, rest


def _write(file: Path, text: str) -> Path:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    return file


def _java_arguments(name: str, options: str) -> str:
    """As `java @file` reads them: one in quotes per line."""
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise PipelineFailed(f"{name}: {error}; quote it as for a shell") from None
    return "".join(f'"{_escaped(one).replace(QUOTE, ESCAPED_QUOTE)}"\n' for one in words)


def _value(text: str) -> str:
    """As java.util.Properties reads it: leading blanks are skipped unless they are escaped."""
    rest = text.lstrip(" ")
    return "\\ " * (len(text) - len(rest)) + _escaped(rest)


def _key(name: str) -> str:
    return "".join(f"\\{sign}" if sign in " :=#!" else _escaped(sign) for sign in name)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})
