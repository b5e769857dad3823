"""`ottla consume`: messages from a topic to stdout."""

from __future__ import annotations

import signal
from functools import partial
from types import FrameType
from typing import Annotated, Any, Final, NoReturn

import typer

from ottla.cli import completion, interrupts, output
from ottla.cli.clients import Cluster, check_partitions, interruptible, on_cluster, topic_of, words
from ottla.cli.failures import CommandFailed, ReaderGone, WrongUsage
from ottla.cli.help import examples
from ottla.cli.kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)
from ottla.cli.messages import DEFAULT_FORMAT, Shown, Writer, compile_format
from ottla.cli.options import JsonOption, TopicArgument
from ottla.cli.times import parse_time_ms

POLL_S: Final = 0.2
FETCH_WAIT_AT_END_MS: Final = 20
TERMINATED: Final = 128 + signal.SIGTERM

GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="Share the topic with this group, and commit what was shown.",
        show_default=False,
        autocompletion=completion.groups,
    ),
]
FromBeginningOption = Annotated[
    bool,
    typer.Option(
        "--from-beginning", help="Start with the oldest message; a group only if it is new."
    ),
]
OffsetOption = Annotated[
    str | None,
    typer.Option(
        metavar="OFFSET",
        help="Start at this offset; -5 is the last five of each partition.",
        show_default=False,
    ),
]
TimestampOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Start at this time: 2025-01-31T12:00:00Z, or milliseconds since 1970.",
        show_default=False,
    ),
]
PartitionOption = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", "-p", min=0, help="Only this one; may be repeated.", show_default=False
    ),
]
MaxOption = Annotated[
    int | None,
    typer.Option("--max", "-n", min=1, help="Stop after so many messages.", show_default=False),
]
FormatOption = Annotated[
    str,
    typer.Option(
        metavar="FORMAT",
        help="%t topic, %p partition, %o offset, %T timestamp, %k key, %v value, %h headers, "
        "\\n \\t; or json.",
    ),
]
FollowOption = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Wait for more messages at the end.")
]


@on_cluster
def consume(
    cluster: Cluster,
    topic: TopicArgument,
    group: GroupOption = None,
    from_beginning: FromBeginningOption = False,
    offset: OffsetOption = None,
    timestamp: TimestampOption = None,
    partition: PartitionOption = None,
    maximum: MaxOption = None,
    format: FormatOption = DEFAULT_FORMAT,
    follow: FollowOption = True,
    as_json: JsonOption = False,
) -> None:
    """Writes the messages of a topic to stdout, from now on or from a place you name.

    In JSON, bytes that are no text become {"base64": "..."}.
    """
    writer = compile_format("json" if as_json else format)
    places = [from_beginning, offset is not None, timestamp is not None]
    if sum(places) > 1:
        raise WrongUsage("Give one of --from-beginning, --offset and --timestamp.")
    if group is not None and (offset is not None or timestamp is not None or partition):
        raise WrongUsage(
            "A group has its own place: use `ottla groups reset-offsets`, or leave out --group."
        )
    start = _start_of(from_beginning, offset, timestamp)
    consumer = cluster.consumer(_settings(group, from_beginning, follow))
    previous = signal.signal(signal.SIGTERM, _terminate)
    has_begun = False
    try:
        if group is not None:
            topic_of(cluster, consumer, topic)
            has_begun = True
            waiting = _join(consumer, topic)
        else:
            assigned = _assignment(cluster, consumer, topic, partition, start)
            consumer.assign(assigned)
            waiting = {place.partition for place in assigned}
        has_begun = True
        _copy(consumer, writer, maximum, follow, waiting, commits=group is not None)
    finally:
        if has_begun:
            # Before that there is nothing to leave or to commit, only an answer to wait for.
            consumer.close()
        signal.signal(signal.SIGTERM, previous)


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """A group must hear that its member leaves, also when we are asked to stop."""
    raise SystemExit(TERMINATED)


def _settings(group: str | None, from_beginning: bool, follow: bool) -> dict[str, Any]:
    # The end of a partition is only known from an empty fetch, which should not wait long for it.
    waiting = {} if follow else {"fetch.wait.max.ms": FETCH_WAIT_AT_END_MS}
    return {
        "group.id": group or "ottla-cli",
        "enable.auto.commit": group is not None,
        # Only what has been written out is committed.
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "enable.partition.eof": not follow,
        **waiting,
    }


def _join(consumer: Consumer, topic: str) -> set[int]:
    """Subscribes; the set is filled by the rebalances to come, with -1 until the first."""
    waiting = {-1}

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        waiting.discard(-1)
        waiting.update(place.partition for place in partitions)

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        waiting.difference_update(place.partition for place in partitions)

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    return waiting


def _start_of(from_beginning: bool, offset: str | None, timestamp: str | None) -> tuple[str, int]:
    """Where to begin: ("earliest" | "latest" | "offset" | "back" | "time", number)."""
    if from_beginning or offset == "earliest":
        return "earliest", 0
    if timestamp is not None:
        return "time", parse_time_ms(timestamp, "--timestamp")
    if offset is None or offset == "latest":
        return "latest", 0
    if not offset.removeprefix("-").isdecimal():
        raise WrongUsage(f"--offset {offset} is no offset; write a number, earliest or latest.")
    return ("back", -int(offset)) if offset.startswith("-") else ("offset", int(offset))


def _assignment(
    cluster: Cluster,
    consumer: Consumer,
    topic: str,
    chosen: list[int] | None,
    start: tuple[str, int],
) -> list[TopicPartition]:
    """Each partition with the offset to start at."""
    existing = topic_of(cluster, consumer, topic).partitions
    check_partitions(topic, existing, chosen or ())
    kind, number = start
    places = [TopicPartition(topic, index) for index in sorted(chosen or existing)]
    if kind == "time":
        wanted = [TopicPartition(topic, place.partition, number) for place in places]
        return interruptible(lambda: consumer.offsets_for_times(wanted, timeout=cluster.timeout_s))
    for place in places:
        if kind in ("earliest", "latest"):
            place.offset = OFFSET_BEGINNING if kind == "earliest" else OFFSET_END
            continue
        low, high = interruptible(partial(consumer.get_watermark_offsets, place, cluster.timeout_s))
        if kind == "offset" and not low <= number <= high:
            raise CommandFailed(
                f"{topic}-{place.partition} has offsets {low} to {high}, but not {number}."
            )
        place.offset = number if kind == "offset" else max(low, high - number)
    return places


def _copy(
    consumer: Consumer,
    writer: Writer,
    maximum: int | None,
    follow: bool,
    waiting: set[int],
    *,
    commits: bool,
) -> None:
    """Writes messages until there are enough, the end is reached, or nobody reads."""
    count = 0
    while (maximum is None or count < maximum) and (follow or waiting):
        message = consumer.poll(0)
        if message is None:
            output.flush()
            if output.reader_is_gone():
                raise ReaderGone
            message = consumer.poll(POLL_S)
        if message is None:
            interrupts.check()
            continue
        if message.error() is not None:
            _heed(message, waiting)
            continue
        output.write(writer(_shown(message)))
        count += 1
        if commits:
            consumer.store_offsets(message)
    output.flush()


def _heed(message: Message, waiting: set[int]) -> None:
    """The end of a partition is news; any other error ends the command."""
    error = message.error()
    assert error is not None
    if error.code() == KafkaError._PARTITION_EOF:
        waiting.discard(message.partition() or 0)
    else:
        raise CommandFailed(words(error))


def _shown(message: Message) -> Shown:
    headers = message.headers() or []
    return Shown(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        message.value(),
        [
            (name, value.encode() if isinstance(value, str) else value)
            for name, value in (headers.items() if isinstance(headers, dict) else headers)
        ],
    )


def register(root: typer.Typer) -> None:
    root.command(
        "consume",
        epilog=examples(
            "ottla consume orders",
            "ottla consume orders --from-beginning --no-follow --json",
            "ottla consume orders --group billing --max 100",
            "ottla consume orders --offset -5 --format '%p:%o %k=%v\\n'",
            "ottla consume orders --timestamp 2025-01-31T12:00:00Z --partition 0",
        ),
    )(consume)
