"""What Spark says, in one line, and where in the SQL it says it.

Spark's messages carry plans, traces of two languages and wrappers around wrappers. A person needs
the one line that counts, which may stand at the beginning, at the end or in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ottla
from ottla.pipelines.language.model import Sql
from ottla.pipelines.language.problems import Place, Problem
from ottla.spark.spelling import nearest

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

CHARS_MAX: Final = 500
SENTENCE_CHARS_MAX: Final = 300
MESSAGE_LINES_MAX: Final = 3
QUERY_CONTEXT_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

TRACEBACK: Final = "Traceback (most recent call last):"
PYTHON_FRAME: Final = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
PYTHON_ERROR: Final = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
JAVA_ERROR: Final = re.compile(r"^(?P<kind>(?:[a-z][\w]*\.)+[A-Z][\w$]*)(?:: (?P<text>.*))?$", re.S)
CAUSED_BY: Final = re.compile(r"^Caused by: (?P<error>.+)$", re.M)
SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w{5}\b.*", re.S)
CONDITION: Final = re.compile(r"^\[[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\] ")
# What Spark puts around the message of a task, of a query and of a call from Python.
WRAPPERS: Final = (
    re.compile(r"^An error occurred while calling \S+\s*: ", re.S),
    re.compile(r"^Query \S*\s?\[id = [^\]]*\] terminated with exception: ", re.S),
    re.compile(r"^Job aborted due to stage failure: .*?\(TID \d+\)(?: \([^)]*\))?: ", re.S),
    re.compile(r"^Job \d+ cancelled because "),
)
# Conditions that only say that something else has failed.
VAGUE: Final = frozenset(
    {"STREAM_FAILED", "TASK_WRITE_FAILED", "FAILED_EXECUTE_UDF", "FAILED_READ_FILE.NO_HINT"}
)
# Lines of a Java trace, and what follows a message without being part of it.
NOT_THE_MESSAGE: Final = re.compile(
    r"^(?:\s+at |\s*\.\.\. \d+ more|Driver stacktrace:|JVM stacktrace:|=== |== |Caused by: )"
)
# Files whose lines mean nothing to the author of a pipeline.
FOREIGN_FILE: Final = re.compile(r"site-packages|dist-packages|pyspark|lib/python\d|<frozen")
OWN_FILES: Final = str(Path(ottla.__file__).parent)
NO_COLUMN: Final = "UNRESOLVED_COLUMN."
NO_FUNCTION: Final = "UNRESOLVED_ROUTINE"
IN_LINES: Final = re.compile(r"\bline (\d+),? pos(?:ition)? (\d+)")


@contextmanager
def quiet() -> Iterator[None]:
    """Errors are answers here, and PySpark would print each with its whole trace on stderr."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in QUERY_CONTEXT_LOGGERS]
    before = [one.disabled for one in loggers]
    for one in loggers:
        one.disabled = True
    try:
        yield
    finally:
        for one, was_disabled in zip(loggers, before, strict=True):
            one.disabled = was_disabled


def one_line(error: BaseException) -> str:
    """The line that counts of whatever Spark, or a Python worker of its, raised."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return line_that_counts(text)


def line_that_counts(text: str) -> str:
    """The same for a text: the last Python error in it, or the deepest Java one, or its start."""
    line = _python_error(text) or _java_error(text) or text.splitlines()[0]
    return _shortened(line)


def problem_in(sql: Sql, error: PySparkException, *, subject: str, shift: int = 0) -> Problem:
    """What Spark's parser or analyser says of this SQL, with its place in the file.

    The text that Spark was given may have `shift` characters, ending with a newline, before it.
    """
    return Problem(f"{subject}: {sentence(error)}", place_of(sql, error, shift=shift))


def sentence(error: PySparkException) -> str:
    """The error's own sentence, suggestions included; no plan, no condition, no SQLSTATE."""
    condition, parameters = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith(NO_COLUMN):
        return _no_column(parameters)
    if condition == NO_FUNCTION:
        return f"there is no function {_unquoted(parameters['routineName'])}"
    text = _unwrapped(error.getMessage() or str(error))
    # Where there are more lines, they say what to do, or go on for too long.
    whole = " ".join(SQLSTATE.sub("", text).split())
    return whole if len(whole) <= SENTENCE_CHARS_MAX else _shortened(_first_lines(text))


def _no_column(parameters: Mapping[str, str]) -> str:
    """Spark's sentence is long and names five columns, of which one is the likely one."""
    name, proposals = _unquoted(parameters["objectName"]), _unquoted(parameters.get("proposal", ""))
    known = proposals.split(", ") if proposals else []
    near = nearest(name.rpartition(".")[2], [one.rpartition(".")[2] for one in known])
    return f"there is no column {name}" + (near or (f"; there are {proposals}" if known else ""))


def _unquoted(name: str) -> str:
    return name.replace("`", "")


def place_of(sql: Sql, error: PySparkException, *, shift: int = 0) -> Place:
    """Where in the file it is; the SQL's beginning when Spark does not say."""
    for context in error.getQueryContext():
        if context.contextType().name == "SQL" and not context.objectType():
            return place_at(sql, context.startIndex() - shift)
    found = IN_LINES.search(str(error))
    if found is None:
        return sql.place
    line = int(found[1]) - (1 if shift else 0)
    lines = sql.text.split("\n")[: line - 1]
    return place_at(sql, sum(len(each) + 1 for each in lines) + int(found[2]))


def place_at(sql: Sql, index: int) -> Place:
    """The place in the file of a character of the SQL; its last one, when it is further on."""
    before = sql.text[: max(0, min(index, len(sql.text.rstrip())))]
    return sql.at(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _python_error(text: str) -> str | None:
    """The exception at the end of the last traceback, and the user's line that raised it."""
    at = text.rfind(TRACEBACK)
    if at < 0:
        return None
    where = ""
    lines = text[at:].splitlines()
    for number, line in enumerate(lines[1:], start=1):
        frame = PYTHON_FRAME.match(line)
        if frame is not None:
            where = _where(frame) or where
        elif line.strip() and not line.startswith(" "):
            return _told(lines[number:], where)
    return None


def _where(frame: re.Match[str]) -> str:
    file = frame["file"]
    if FOREIGN_FILE.search(file) or file.startswith(OWN_FILES):
        return ""
    name = re.split(r"[/\\]", file)[-1]
    return f" ({name} line {frame['line']}, in {frame['name']})"


def _told(lines: list[str], where: str) -> str:
    """The error that these lines begin with; its message may have several."""
    found = PYTHON_ERROR.match(lines[0].strip())
    if found is None:
        return lines[0].strip() + where
    if found["kind"].endswith("Py4JJavaError"):
        return _java_error("\n".join(lines)) or lines[0]
    text = [found["text"] or ""]
    for line in lines[1:MESSAGE_LINES_MAX]:
        if not line.strip() or NOT_THE_MESSAGE.match(line):
            break
        text.append(line.strip())
    said = SQLSTATE.sub("", _without_condition(" ".join(text)))
    # Our own errors, and Spark's, are sentences that stand by themselves.
    if said and found["kind"].startswith(("ottla.", "pyspark.errors.")):
        return said
    return f"{found['kind'].rpartition('.')[2]}{': ' if said else ''}{said}{where}"


def _java_error(text: str) -> str | None:
    """Spark's own sentence; else the deepest cause that says something."""
    if CONDITION.match(_unwrapped(text, keep_condition=True)):
        return _first_lines(_unwrapped(text))
    causes: list[str] = CAUSED_BY.findall(text)
    for error in (*reversed(causes), text):
        line = _named_java(error)
        if line:
            return line
    return None


def _named_java(text: str) -> str:
    """`java.net.UnknownHostException: db` says nothing without its name."""
    unwrapped = _first_lines(_unwrapped(text))
    kind = JAVA_ERROR.match(_cut(text).strip())
    if kind is not None and " " not in unwrapped:
        name = kind["kind"].rpartition(".")[2]
        return f"{name}: {unwrapped}" if unwrapped and unwrapped != kind["kind"] else name
    return unwrapped


def _unwrapped(text: str, *, keep_condition: bool = False) -> str:
    """Without the wrappers at its beginning, however many there are."""
    text = text.strip()
    while True:
        before = text
        found = CONDITION.match(text)
        if found is not None and not (keep_condition and found[0][1:-2] not in VAGUE):
            text = text[found.end() :]
        for wrapper in WRAPPERS:
            text = wrapper.sub("", text, count=1)
        kind = JAVA_ERROR.match(text)
        if kind is not None and kind["text"]:
            text = kind["text"].strip()
        if text == before:
            return text


def _without_condition(text: str) -> str:
    return CONDITION.sub("", text, count=1)


def _first_lines(text: str) -> str:
    """The first line, without what Spark appends to it."""
    return SQLSTATE.sub("", _cut(text)).strip().rstrip(";")


def _cut(text: str) -> str:
    for line in text.splitlines():
        if line.strip():
            return "" if NOT_THE_MESSAGE.match(line) else line
    return ""


def _shortened(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= CHARS_MAX else line[:CHARS_MAX] + "…"
