"""`ottla produce`: lines, or whole files, to a topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, BinaryIO, Final, NamedTuple

import typer

from ottla.cli import interrupts, output
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.kafka import KafkaError, KafkaException, Message, Producer
from ottla.cli.messages import unescaped
from ottla.cli.options import JsonOption, TopicArgument, pairs
from ottla.cli.undelivered import Reasons
from ottla.config import TOPIC_SETTINGS

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
FAILURES_SHOWN_MAX: Final = 10
MESSAGE_BYTES_MAX: Final[int] = TOPIC_SETTINGS["max.message.bytes"].default
FLUSH_AFTER_INTERRUPT_S: Final = 5.0
FLUSH_SLICE_S: Final = 0.5
PROGRESS_EVERY: Final = 1000


class Item(NamedTuple):
    """A message to send, and where it stood for complaints about it."""

    where: str
    key: bytes | None
    value: bytes | None
    bytes_read: int


class Tally:
    """What became of the messages."""

    def __init__(self, reasons: Reasons, *, as_json: bool) -> None:
        self.delivered = 0
        self.failed = 0
        self._reasons = reasons
        self._as_json = as_json

    def on_delivery(self, where: str) -> Callable[[KafkaError | None, Message], None]:
        def reported(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._complain(where, self._reasons.undelivered, error, message)
                return
            self.delivered += 1
            if self._as_json:
                row = {
                    "topic": message.topic(),
                    "partition": message.partition(),
                    "offset": message.offset(),
                }
                output.write(f"{output.json_line(row)}\n".encode())

        return reported

    def count_unsent(self, item: Item, error: KafkaError) -> None:
        size_bytes = len(item.value or b"") + len(item.key or b"")
        self._complain(item.where, self._reasons.unsent, error, size_bytes)

    def _complain(self, where: str, reason: Callable[..., str], *details: object) -> None:
        self.failed += 1
        if self.failed <= FAILURES_SHOWN_MAX:
            output.complain(f"{where} {reason(*details)}")


FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE...", help="Instead of stdin; - is stdin.", show_default=False),
]
KeySeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        "-K",
        metavar="TEXT",
        help="What stands between key and value in a line; \\t is a tab.",
        show_default=False,
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME=VALUE",
        help="On each message; may be repeated.",
        show_default=False,
    ),
]
PartitionOption = Annotated[
    int | None,
    typer.Option(
        "--partition", "-p", min=0, help="Chosen by key if not given.", show_default=False
    ),
]
AcksOption = Annotated[
    str, typer.Option(metavar="ACKS", help="all, 1 or 0 acknowledgements to wait for.")
]
CompressionOption = Annotated[
    str, typer.Option(metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
]
WholeOption = Annotated[
    bool, typer.Option("--whole", help="Each file is one message, not each line.")
]
NullOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="A value that is this text is sent as null.", show_default=False
    ),
]


@on_cluster
def produce(
    cluster: Cluster,
    topic: TopicArgument,
    files: FilesArgument = None,
    key_separator: KeySeparatorOption = None,
    headers: HeaderOption = None,
    partition: PartitionOption = None,
    acks: AcksOption = "all",
    compression: CompressionOption = "none",
    whole: WholeOption = False,
    null: NullOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sends each line of stdin, or of files, as a message.

    With --acks all, a message that had to be sent again arrives once only (an
    idempotent producer). --json writes where each message went.
    """
    settings = _settings(cluster, acks, compression)
    names = files or ["-"]
    for name in names:
        _check_readable(name)
    given = pairs("--header", headers or ())
    common: dict[str, Any] = {
        "partition": -1 if partition is None else partition,
        "headers": [(name, value.encode()) for name, value in given.items()],
    }
    separator = unescaped(key_separator).encode() if key_separator else None
    reasons = Reasons(cluster, topic, MESSAGE_BYTES_MAX)
    producer = cluster.producer(settings | reasons.producer_settings())
    tally = Tally(reasons, as_json=as_json)
    try:
        with _progress(names) as advance:
            for item in _items(names, separator, null, whole=whole):
                _send(producer, topic, item, common, tally)
                advance(item.bytes_read)
            # In slices, between which Python hears Ctrl-C.
            while producer.flush(FLUSH_SLICE_S):
                interrupts.check()
    except KeyboardInterrupt:
        producer.flush(FLUSH_AFTER_INTERRUPT_S)
        output.say(f"Interrupted after {tally.delivered} messages.")
        raise
    _conclude(topic, tally)


def _settings(cluster: Cluster, acks: str, compression: str) -> dict[str, Any]:
    if compression not in CODECS:
        raise WrongUsage(f"--compression {compression} is none of {', '.join(CODECS)}.")
    if acks not in ("all", "-1", "1", "0"):
        raise WrongUsage(f"--acks {acks} is none of all, 1, 0.")
    return {
        "acks": acks,
        "enable.idempotence": acks in ("all", "-1"),
        "compression.type": compression,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "message.timeout.ms": int(cluster.timeout_s * 1000),
    }


def _check_readable(name: str) -> None:
    """Before anything is sent: of several files the last may be the one."""
    if name == "-":
        return
    if os.path.isdir(name):
        raise CommandFailed(f"Cannot read {name}: it is a directory.")
    try:
        with open(name, "rb"):
            pass
    except OSError as error:
        raise CommandFailed(f"Cannot read {name}: {error.strerror}.") from None


def _conclude(topic: str, tally: Tally) -> None:
    output.flush()
    noun = "message" if tally.delivered == 1 else "messages"
    if tally.failed:
        raise CommandFailed(
            f"{tally.failed} of {tally.failed + tally.delivered} messages were not delivered."
        )
    output.say(f"Produced {tally.delivered} {noun} to {topic}.")


def _send(producer: Producer, topic: str, item: Item, common: dict[str, Any], tally: Tally) -> None:
    """Queues one message, waiting for room; what is reported meanwhile is counted."""
    reported = tally.on_delivery(item.where)
    while True:
        try:
            producer.produce(topic, item.value, item.key, on_delivery=reported, **common)
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            tally.count_unsent(item, error.args[0])
            return
        else:
            producer.poll(0)
            return


def _items(
    names: list[str], separator: bytes | None, null: str | None, *, whole: bool
) -> Iterator[Item]:
    marker = None if null is None else null.encode()
    for name in names:
        with _opened(name) as stream:
            place = "stdin" if name == "-" else name
            if whole:
                content = stream.read()
                yield _item(place, content, separator, marker, len(content))
                continue
            for number, line in enumerate(stream, 1):
                text = line.removesuffix(b"\n").removesuffix(b"\r")
                yield _item(f"{place} line {number}", text, separator, marker, len(line))


def _item(
    where: str, text: bytes, separator: bytes | None, marker: bytes | None, bytes_read: int
) -> Item:
    key = None
    if separator is not None:
        key, found, text = text.partition(separator)
        if not found:
            raise CommandFailed(f"{where} has no {separator.decode()!r}; see --key-separator.")
    return Item(where, key, None if text == marker else text, bytes_read)


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb") as stream:
        yield stream


@contextmanager
def _progress(names: list[str]) -> Iterator[Callable[[int], None]]:
    """A bar on long input, and only where a person watches who is not typing it."""
    is_typed = "-" in names and sys.stdin.isatty()
    if is_typed or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    total = None if "-" in names else sum(os.path.getsize(name) for name in names)
    columns = (
        TextColumn("{task.fields[messages]:,} messages"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total, messages=0)
        count = pending_bytes = 0

        def advance(bytes_read: int) -> None:
            nonlocal count, pending_bytes
            count += 1
            pending_bytes += bytes_read
            if count % PROGRESS_EVERY == 0:
                progress.update(task, advance=pending_bytes, messages=count)
                pending_bytes = 0

        yield advance


def register(root: typer.Typer) -> None:
    root.command(
        "produce",
        epilog=examples(
            "echo hello | ottla produce greetings",
            "ottla produce orders orders.jsonl --compression zstd",
            "ottla produce users --key-separator : < users.txt",
            "ottla produce images --whole cat.png --header type=image/png",
        ),
    )(produce)
