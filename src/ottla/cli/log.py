"""`ottla log`: what lies on disk, read without a broker and without touching it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from time import monotonic
from typing import Annotated, Any, Final

import typer

from ottla.cli import dumping, output
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.options import JsonOption
from ottla.cli.read_only import ReadOnlyDisk
from ottla.log.inspection.findings import Checked, Finding
from ottla.log.inspection.inspection import Inspection, NothingToInspect, Target, find_target
from ottla.log.inspection.partition_check import SEGMENT_FILE

app = typer.Typer(
    help="Files of a log: check and show them, without a broker.",
    no_args_is_help=True,
    epilog=examples("ottla log verify ottla-data", "ottla log dump ottla-data/orders-0"),
)

PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A data directory, a partition's directory, or one file of it; Kafka's or Ottla's.",
        show_default=False,
    ),
]
PROGRESS_EVERY_S: Final = 0.2
MIB: Final = 1024 * 1024


@app.callback()
def log() -> None: ...


# ------------------------------------------------------------------------------------- verify


@app.command(
    "verify",
    epilog=examples(
        "ottla log verify ottla-data",
        "ottla log verify ottla-data/orders-0 --deep",
        "ottla log verify /var/lib/kafka/data --json",
        "ottla log verify orders-0/00000000000000000000.log",
    ),
)
def verify(
    path: PathArgument,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also open every batch and look at its records.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only what was found, not what is in order.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Checks every batch, every index and every checkpoint; exit code 1 when something is wrong.

    It reads only, so it may run beside a broker. Each finding is a line: file, position, offset,
    what is wrong, what to do. Notes are what the broker sets right by itself, such as the torn
    tail that a crash leaves.
    """
    disk, target = _aimed_at(path)
    totals = _Totals()
    with _progress(_log_bytes(target)) as progress:
        inspection = Inspection(
            disk,
            target,
            dumping.read_topics(disk, target.data),
            deep,
            progress.advance,
            progress.begin,
        )
        for found in inspection.run():
            totals.take(found)
            if isinstance(found, Checked) and quiet and not (found.problems or found.notes):
                continue
            progress.clear()
            output.write(f"{_line(found, as_json=as_json)}\n".encode())
    output.write(f"{totals.line(as_json=as_json)}\n".encode())
    if totals.problems:
        raise typer.Exit(1)


def _line(found: Finding | Checked, *, as_json: bool) -> str:
    if as_json:
        return output.json_line(_row(found))
    return _words(found) if isinstance(found, Finding) else _summary(found)


def _row(found: Finding | Checked) -> dict[str, Any]:
    if isinstance(found, Checked):
        return {"type": "partition", **found._asdict()}
    return {
        "type": "problem" if found.is_problem else "note",
        "trouble": str(found.trouble),
        "path": found.path,
        "position": found.position,
        "offset": found.offset,
        "what": found.what,
        "advice": found.advice,
    }


def _words(finding: Finding) -> str:
    place = finding.path
    if finding.position is not None:
        place += f" at {finding.position}"
    if finding.offset is not None:
        place += f", offset {finding.offset}"
    kind = "problem" if finding.is_problem else "note"
    return f"{kind}: {place}: {finding.what}. {finding.advice}"


def _summary(checked: Checked) -> str:
    if checked.end_offset > checked.start_offset:
        offsets = f"offsets {checked.start_offset} to {checked.end_offset - 1}"
    else:
        offsets = f"empty at offset {checked.end_offset}"
    held = (
        f"{_count(checked.segments, 'segment')}, {_count(checked.batches, 'batch')}, "
        f"{_count(checked.records, 'record')}, {checked.size:,} bytes"
    )
    if checked.problems_not_shown:
        held += f" ({checked.problems_not_shown} more problems are not shown)"
    return f"{checked.name}: {_verdict(checked.problems, checked.notes)}; {offsets}, {held}"


def _verdict(problems: int, notes: int) -> str:
    parts = [_count(problems, "problem")] if problems else ["ok"]
    return ", ".join([*parts, *([_count(notes, "note")] if notes else [])])


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('ch') else 's'}"


class _Totals:
    """Everything that was looked at, in one line."""

    def __init__(self) -> None:
        self.partitions = self.batches = self.records = self.size = 0
        self.problems = self.notes = self._damaged = 0

    def take(self, found: Finding | Checked) -> None:
        if isinstance(found, Finding):
            self.problems += found.is_problem
            self.notes += not found.is_problem
            return
        self.partitions += 1
        self.batches += found.batches
        self.records += found.records
        self.size += found.size
        self._damaged += found.problems > 0
        self.problems += found.problems_not_shown

    def line(self, *, as_json: bool) -> str:
        row = {
            "type": "total",
            "partitions": self.partitions,
            "batches": self.batches,
            "records": self.records,
            "size": self.size,
            "problems": self.problems,
            "notes": self.notes,
        }
        if as_json:
            return output.json_line(row)
        verdict = _verdict(self.problems, self.notes)
        where = f" in {self._damaged} of them" if self._damaged else ""
        return (
            f"{_count(self.partitions, 'partition')}: {verdict}{where}; "
            f"{_count(self.batches, 'batch')}, {_count(self.records, 'record')}, "
            f"{self.size:,} bytes"
        )


# --------------------------------------------------------------------------------------- dump


@app.command(
    "dump",
    epilog=examples(
        "ottla log dump ottla-data/orders-0",
        "ottla log dump ottla-data/orders-0 --records --from-offset 1000 --max 10",
        "ottla log dump ottla-data/__cluster_metadata-0 --records --json",
        "ottla log dump ottla-data/orders-0/00000000000000000000.timeindex",
    ),
)
def dump(
    path: PathArgument,
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Open batches and show their records.")
    ] = False,
    from_offset: Annotated[
        int, typer.Option(metavar="OFFSET", min=0, help="Begin with the batch of this offset.")
    ] = 0,
    max_rows: Annotated[
        int | None,
        typer.Option("--max", metavar="N", min=1, help="Stop after N lines.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Shows the batches of a log, or the entries of an index or a snapshot, one per line.

    With --records metadata, group and control records are shown as what they mean; keys and
    values that are no printable text are shown in hexadecimal digits.
    """
    disk, target = _aimed_at(path)
    if target.partition is None:
        raise WrongUsage(f"{path} is a whole data directory; name one of its partitions.")
    rows = islice(_rows(disk, target, dumping.Wanted(from_offset, records)), max_rows)
    try:
        for row in rows:
            line = output.json_line(row) if as_json else _text(row)
            output.write(f"{line}\n".encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise CommandFailed(f"Cannot read {error.filename or path}: {error.strerror}.") from None


def _rows(disk: ReadOnlyDisk, target: Target, wanted: dumping.Wanted) -> Iterator[dict[str, Any]]:
    partition = target.topic_partition
    topic = None if partition is None else partition.topic
    for file in dumping.files_of(disk, target, wanted):
        name = os.path.basename(file)
        for row in dumping.dump_file(disk, file, topic, wanted):
            yield {"type": row.pop("type"), "file": name, **row}


# A batch's line leaves out what most batches do not have.
USUAL: Final[Mapping[str, Any]] = {
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "last_sequence": -1,
    "transactional": False,
    "control": False,
    "delete_horizon": None,
    "timestamp_type": "create",
}


def _text(row: Mapping[str, Any]) -> str:
    is_record = row["type"] == "record"
    hidden = ("type", "opened", "file") if is_record else ("type",)
    shown = [
        f"{name}={_value(value)}"
        for name, value in row.items()
        if name not in hidden and not (name in USUAL and USUAL[name] == value)
    ]
    shown += [f"{name}={_value(value)}" for name, value in row.get("opened", {}).items()]
    return f"{'  ' if is_record else ''}{row['type']} {' '.join(shown)}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        is_word = value and not any(each.isspace() or each == '"' for each in value)
        return value if is_word else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict) and value.keys() == {"hex"}:
        return f"0x{value['hex']}"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "null" if value is None else str(value)


# ------------------------------------------------------------------------------------- shared


def _aimed_at(path: str) -> tuple[ReadOnlyDisk, Target]:
    disk = ReadOnlyDisk()
    try:
        return disk, find_target(disk, os.path.abspath(path))
    except NothingToInspect as error:
        raise WrongUsage(f"{error}.") from None
    except OSError as error:
        raise CommandFailed(f"Cannot read {error.filename}: {error.strerror}.") from None


def _log_bytes(target: Target) -> int:
    """What there is to read, for the progress line; files that go meanwhile do not matter."""
    if target.file is not None:
        return _size(target.file)
    top = target.partition or target.data or ""
    return sum(
        _size(os.path.join(directory, name))
        for directory, _, names in os.walk(top)
        for name in names
        if name.endswith(".log") and SEGMENT_FILE.fullmatch(name)
    )


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


class _Progress:
    """A line on the terminal that is written over; nothing where no person looks."""

    def __init__(self, total_bytes: int) -> None:
        self._total = max(1, total_bytes)
        self._done = 0
        self._name = ""
        self._is_shown = False
        self._is_terminal = sys.stderr.isatty()
        self._next_s = monotonic() + PROGRESS_EVERY_S

    def begin(self, name: str) -> None:
        self._name = name

    def advance(self, byte_count: int) -> None:
        self._done += byte_count
        if self._is_terminal and monotonic() >= self._next_s:
            self._next_s = monotonic() + PROGRESS_EVERY_S
            percent = min(100, self._done * 100 // self._total)
            amount = f"{self._done / MIB:,.0f} of {self._total / MIB:,.0f} MiB"
            print(
                f"\r\x1b[K{percent:3d} %  {amount}  {self._name}",
                end="",
                file=sys.stderr,
                flush=True,
            )
            self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_shown = False


@contextmanager
def _progress(total_bytes: int) -> Iterator[_Progress]:
    progress = _Progress(total_bytes)
    try:
        yield progress
    finally:
        progress.clear()


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="log")
