"""`ottla groups`: consumer groups, their lag and their places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from ottla.cli import completion, interrupts, output
from ottla.cli.clients import (
    Cluster,
    offsets_at,
    on_cluster,
    report,
    topic_of,
    wait_each,
    words,
)
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.kafka import (
    AdminClient,
    ConsumerGroupTopicPartitions,
    TopicPartition,
    at_time,
    earliest,
    latest,
)
from ottla.cli.options import JsonOption, YesOption
from ottla.cli.times import parse_time_ms

app = typer.Typer(
    help="Consumer groups: list, describe, reset offsets, delete.",
    no_args_is_help=True,
    epilog=examples("ottla groups list", "ottla groups describe billing"),
)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=completion.groups)
]
GroupArguments = Annotated[
    list[str],
    typer.Argument(metavar="GROUP...", show_default=False, autocompletion=completion.groups),
]


class Place(NamedTuple):
    """A partition that sorts and hashes by name alone, unlike TopicPartition."""

    topic: str
    partition: int


@app.command("list", epilog=examples("ottla groups list", "ottla groups list --json"))
@on_cluster
def list_groups(cluster: Cluster, as_json: JsonOption = False) -> None:
    """Lists consumer groups."""
    admin = cluster.admin()  # It must outlive its futures.
    listed = interrupts.result(admin.list_consumer_groups(request_timeout=cluster.timeout_s))
    rows = [
        {"group": each.group_id, "state": each.state.name.lower() if each.state else None}
        for each in sorted(listed.valid, key=lambda each: each.group_id)
    ]
    if not rows and not listed.errors:
        output.say("There are no groups yet; `ottla consume TOPIC --group NAME` makes one.")
    output.show(rows, as_json=as_json)
    if listed.errors:
        raise CommandFailed(f"The list is not complete: {words(listed.errors[0].args[0])}")


@app.command(
    "describe",
    epilog=examples("ottla groups describe billing", "ottla groups describe billing --json"),
)
@on_cluster
def describe(cluster: Cluster, groups: GroupArguments, as_json: JsonOption = False) -> None:
    """Shows for each partition the committed offset, the lag, and who reads it."""
    admin = cluster.admin()
    found, failures = wait_each(
        admin.describe_consumer_groups(groups, request_timeout=cluster.timeout_s)
    )
    rows: list[dict[str, Any]] = []
    for name, group in found.items():
        readers = {
            Place(place.topic, place.partition): member
            for member in group.members
            for place in (member.assignment.topic_partitions if member.assignment else ())
        }
        committed = committed_by(cluster, admin, name)
        if group.state.name == "DEAD" or not (committed or group.members):
            failures[name] = "There is no such group, or it has neither members nor offsets."
            continue
        rows += _lag_rows(cluster, admin, name, group.state.name.lower(), committed, readers)
        if not as_json:
            output.say(f"{name} is {group.state.name.lower()}, {len(group.members)} members.")
    output.show(rows, as_json=as_json)
    report(failures, len(rows))


def _lag_rows(
    cluster: Cluster,
    admin: AdminClient,
    group: str,
    state: str,
    committed: Mapping[Place, int],
    readers: Mapping[Place, Any],
) -> Iterable[dict[str, Any]]:
    places = sorted({*committed, *readers})
    ends = ends_of(cluster, admin, places)
    for place in places:
        offset, end = committed.get(place), ends.get(place)
        reader = readers.get(place)
        yield {
            "group": group,
            "state": state,
            "topic": place.topic,
            "partition": place.partition,
            "committed": offset,
            "next_offset": end,
            "lag": None if offset is None or end is None else max(0, end - offset),
            "member": reader.member_id if reader else None,
            "client": reader.client_id if reader else None,
            "host": reader.host if reader else None,
        }


def committed_by(cluster: Cluster, admin: AdminClient, group: str) -> dict[Place, int]:
    """The offsets that a group has committed."""
    futures = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], request_timeout=cluster.timeout_s
    )
    listed = interrupts.result(futures[group])
    return {
        Place(each.topic, each.partition): each.offset
        for each in listed.topic_partitions or ()
        if each.offset >= 0
    }


def ends_of(cluster: Cluster, admin: AdminClient, places: Iterable[Place]) -> dict[Place, int]:
    """The next offset of each partition that still exists."""
    found = offsets_at(cluster, admin, [TopicPartition(*place) for place in places], latest())
    return {Place(*place): offset for place, offset in found.items()}


TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:PARTITION,...]",
        help="May be repeated.",
        show_default=False,
        autocompletion=completion.topics,
    ),
]
AllTopicsOption = Annotated[
    bool, typer.Option("--all-topics", help="Every topic that the group has offsets for.")
]
ToEarliestOption = Annotated[bool, typer.Option("--to-earliest", help="The oldest message.")]
ToLatestOption = Annotated[bool, typer.Option("--to-latest", help="Only what comes from now on.")]
ToOffsetOption = Annotated[
    int | None,
    typer.Option("--to-offset", min=0, help="The same in each partition.", show_default=False),
]
ToDatetimeOption = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        metavar="TIME",
        help="2025-01-31T12:00:00Z, or milliseconds since 1970.",
        show_default=False,
    ),
]
ShiftByOption = Annotated[
    int | None,
    typer.Option("--shift-by", help="Forward, or back if negative.", show_default=False),
]
ExecuteOption = Annotated[
    bool, typer.Option("--execute", help="Do it; without this it is only shown.")
]


class Target(NamedTuple):
    """Where to; one of these is given."""

    earliest: bool
    latest: bool
    offset: int | None
    time_ms: int | None
    shift_by: int | None


@app.command(
    "reset-offsets",
    epilog=examples(
        "ottla groups reset-offsets billing --topic orders --to-earliest",
        "ottla groups reset-offsets billing --topic orders --to-earliest --execute",
        "ottla groups reset-offsets billing --all-topics --to-datetime 2025-01-31T12:00Z",
        "ottla groups reset-offsets billing --topic orders:0,1 --shift-by -100",
    ),
)
@on_cluster
def reset_offsets(
    cluster: Cluster,
    group: GroupArgument,
    topics: TopicsOption = None,
    all_topics: AllTopicsOption = False,
    to_earliest: ToEarliestOption = False,
    to_latest: ToLatestOption = False,
    to_offset: ToOffsetOption = None,
    to_datetime: ToDatetimeOption = None,
    shift_by: ShiftByOption = None,
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Moves a group to another place. Shows what would happen unless --execute is given.

    The group must have no running members. An offset that does not exist becomes
    the nearest that does.
    """
    time_ms = None if to_datetime is None else parse_time_ms(to_datetime, "--to-datetime")
    target = Target(to_earliest, to_latest, to_offset, time_ms, shift_by)
    if sum(value is not None and value is not False for value in target) != 1:
        raise WrongUsage(
            "Give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by."
        )
    if bool(topics) == all_topics:
        raise WrongUsage("Which topics? Give --topic TOPIC or --all-topics.")
    admin = cluster.admin()
    committed = committed_by(cluster, admin, group)
    places = sorted(committed) if all_topics else _named(cluster, admin, topics or ())
    if not places:
        raise CommandFailed(f"{group} has no offsets; name topics with --topic.")
    wanted = _planned(cluster, admin, group, places, committed, target)
    if execute:
        _commit(cluster, admin, group, wanted)
    rows = [
        {
            "group": group,
            "topic": place.topic,
            "partition": place.partition,
            "committed": committed.get(place),
            "new_offset": offset,
        }
        for place, offset in wanted.items()
    ]
    output.show(rows, as_json=as_json)
    output.say("Done." if execute else "Nothing was changed; add --execute to do it.")


def _planned(
    cluster: Cluster,
    admin: AdminClient,
    group: str,
    places: Sequence[Place],
    committed: Mapping[Place, int],
    target: Target,
) -> dict[Place, int]:
    """The new offset of each partition, never outside of what is there."""
    ranges = _ranges(cluster, admin, places)
    offsets = {place: end if target.latest else start for place, (start, end) in ranges.items()}
    if target.offset is not None:
        offsets = dict.fromkeys(places, target.offset)
    elif target.time_ms is not None:
        found = _at_time(cluster, admin, places, target.time_ms)
        offsets = {place: found.get(place, end) for place, (_, end) in ranges.items()}
    elif target.shift_by is not None:
        offsets = _shifted(group, places, committed, target.shift_by)
    return {place: min(max(offsets[place], start), end) for place, (start, end) in ranges.items()}


def _shifted(
    group: str, places: Iterable[Place], committed: Mapping[Place, int], shift_by: int
) -> dict[Place, int]:
    for place in places:
        if place not in committed:
            raise CommandFailed(
                f"{group} has no offset for {place.topic}-{place.partition} to shift; "
                "use --to-earliest, --to-latest or --to-offset."
            )
    return {place: committed[place] + shift_by for place in places}


def _named(cluster: Cluster, admin: AdminClient, topics: Iterable[str]) -> list[Place]:
    """The partitions that `topic` or `topic:0,1` mean."""
    places = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        existing = sorted(topic_of(cluster, admin, name).partitions)
        if not colon:
            places += [Place(name, index) for index in existing]
            continue
        for number in numbers.split(","):
            if not number.isdecimal() or int(number) not in existing:
                raise CommandFailed(
                    f"{name} has no partition {number}; it has 0 to {len(existing) - 1}."
                )
            places.append(Place(name, int(number)))
    return places


def _ranges(
    cluster: Cluster, admin: AdminClient, places: Iterable[Place]
) -> dict[Place, tuple[int, int]]:
    partitions = [TopicPartition(*place) for place in places]
    starts = offsets_at(cluster, admin, partitions, earliest())
    ends = offsets_at(cluster, admin, partitions, latest())
    missing = [f"{place.topic}-{place.partition}" for place in places if place not in ends]
    if missing:
        raise CommandFailed(f"These partitions do not exist any more: {', '.join(missing)}.")
    return {place: (starts[place], ends[place]) for place in places}


def _at_time(
    cluster: Cluster, admin: AdminClient, places: Iterable[Place], time_ms: int
) -> dict[Place, int]:
    """The first offset at or after a time, where there is one."""
    partitions = [TopicPartition(*place) for place in places]
    found = offsets_at(cluster, admin, partitions, at_time(time_ms))
    return {Place(*place): offset for place, offset in found.items() if offset >= 0}


def _commit(cluster: Cluster, admin: AdminClient, group: str, wanted: Mapping[Place, int]) -> None:
    described, _ = wait_each(
        admin.describe_consumer_groups([group], request_timeout=cluster.timeout_s)
    )
    if group in described and described[group].members:
        count = len(described[group].members)
        raise CommandFailed(f"{group} has {count} running members; stop them first.")
    request = ConsumerGroupTopicPartitions(
        group, [TopicPartition(*place, offset) for place, offset in wanted.items()]
    )
    futures = admin.alter_consumer_group_offsets([request], request_timeout=cluster.timeout_s)
    results, failures = wait_each(futures)
    report(failures)
    report(
        {
            f"{each.topic}-{each.partition}": each.error.str()
            for each in results[group].topic_partitions
            if each.error is not None
        }
    )


@app.command(
    "delete", epilog=examples("ottla groups delete billing", "ottla groups delete a b --yes")
)
@on_cluster
def delete(cluster: Cluster, groups: GroupArguments, yes: YesOption = False) -> None:
    """Deletes groups with their offsets."""
    output.confirm(f"Delete {', '.join(groups)} with all committed offsets?", yes=yes)
    admin = cluster.admin()
    deleted, failures = wait_each(
        admin.delete_consumer_groups(groups, request_timeout=cluster.timeout_s)
    )
    if deleted:
        output.say(f"Deleted {', '.join(deleted)}.")
    report(failures, len(deleted))


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="groups")
