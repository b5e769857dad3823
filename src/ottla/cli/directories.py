"""`ottla partitions dirs` and `move-dir`: on which disks of a node replicas lie."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from ottla.cli import output
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.directory_mover import Directory, DirectoryMover
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.move_plan import Place
from ottla.cli.moving import POLL_S, progress, rate_of
from ottla.cli.options import JsonOption, YesOption

# So much stays free where copies go to.
SPARE_BYTES: Final = 64 * 1024 * 1024

NodeOption = Annotated[int, typer.Option("--node", metavar="NODE", help="The node whose disks.")]
TopicsOption = Annotated[
    str | None, typer.Option("--topics", metavar="TOPIC,...", help="Only replicas of these topics.")
]


class Step(NamedTuple):
    place: Place
    source: str
    target: str
    bytes: int


def show(
    cluster: Cluster,
    node: NodeOption,
    topics: TopicsOption = None,
    only_moving: Annotated[
        bool, typer.Option("--moving", help="Only those that are on their way to another.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows in which directory of a node each replica lies, and how far those are that move."""
    with DirectoryMover(cluster) as mover:
        directories = _directories(mover, node)
        wanted = None if topics is None else _known(mover, topics)
        rows = [row for row in _rows(directories) if wanted is None or row["topic"] in wanted]
        output.show([row for row in rows if row["moves_to"] or not only_moving], as_json=as_json)
        for each in directories.values():
            if each.is_offline:
                output.say(f"{each.path} is offline.")
        if mover.directory_rate(node) and not _coming(directories):
            output.say(
                f"Node {node} still has a throttle, and nothing moves between its directories: "
                f"`ottla partitions move-dir --node {node} --verify` lifts it."
            )


def move(
    cluster: Cluster,
    node: NodeOption,
    topics: TopicsOption = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="DIR", help="All that lies in this directory.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="DIR", help="Where they are to lie.")
    ] = None,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            help="Copy no more per second, such as 20M; lifted when all have arrived. Given again "
            "while they move, it changes the rate.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="They stay where they are, on their way or not.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Show what still moves; when nothing does, lift a throttle."),
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until all have arrived.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Moves replicas from one directory of a node to another, while they are written to.

    A copy fills beside the replica, and takes its place when it has everything. The move goes on
    without this command, also after a crash of the node: --verify shows how far it is.
    """
    rate = None if throttle is None else rate_of(throttle)
    with DirectoryMover(cluster) as mover:
        directories = _directories(mover, node)
        if verify:
            _verify(mover, node)
            return
        wanted = None if topics is None else _known(mover, topics)
        if cancel:
            _cancel(mover, node, directories, wanted)
            return
        steps = _steps(node, directories, wanted, source, target)
        if not steps:
            output.say("All of them lie there already.")
            return
        _tell(steps, rate)
        _check_room(node, directories[steps[0].target], steps)
        if dry_run:
            return
        output.confirm(f"Move {len(steps)} replica(s) of node {node}?", yes=yes)
        _move(mover, node, steps, rate, waits=not no_wait)


def _directories(mover: DirectoryMover, node: int) -> dict[str, Directory]:
    known = mover.nodes()
    if node not in known:
        raise CommandFailed(
            f"There is no node {node}; the cluster has {', '.join(map(str, sorted(known)))}."
        )
    return mover.directories(node)


def _known(mover: DirectoryMover, topics: str) -> set[str]:
    names, there = set(topics.split(",")), {topic for topic, _ in mover.look()[0]}
    for name in sorted(names - there):
        raise CommandFailed(f"There is no topic {name}; `ottla topics list` shows them.")
    return names


def _rows(directories: Mapping[str, Directory]) -> Iterator[dict[str, Any]]:
    coming = _coming(directories)
    for directory in directories.values():
        for place, copy in sorted(directory.here.items()):
            target = coming.get(place)
            yield {
                "topic": place[0],
                "partition": place[1],
                "directory": directory.path,
                "bytes": copy.bytes,
                "moves_to": None if target is None else target.path,
                "copied": None if target is None else target.coming[place].bytes,
                "lag": None if target is None else target.coming[place].lag,
            }


def _coming(directories: Mapping[str, Directory]) -> dict[Place, Directory]:
    return {place: each for each in directories.values() for place in each.coming}


def _steps(
    node: int,
    directories: Mapping[str, Directory],
    topics: set[str] | None,
    source: str | None,
    target: str | None,
) -> list[Step]:
    if target is None or (topics is None and source is None):
        raise WrongUsage("Say what is to move, by --topics or --from, and where, by --to DIR.")
    paths = [None if path is None else os.path.normpath(path) for path in (source, target)]
    for path in paths:
        if path is not None and path not in directories:
            raise CommandFailed(
                f"Node {node} has no directory {path}; it has {', '.join(sorted(directories))}."
            )
    source, target = paths
    assert target is not None
    if directories[target].is_offline:
        raise CommandFailed(f"{target} of node {node} is offline.")
    coming = _coming(directories)
    return [
        Step(place, each.path, target, copy.bytes)
        for each in directories.values()
        if source in (None, each.path)
        for place, copy in sorted(each.here.items())
        if (topics is None or place[0] in topics) and (each.path != target or place in coming)
    ]


def _tell(steps: Sequence[Step], rate: int | None) -> None:
    output.show(
        [
            {
                "topic": step.place[0],
                "partition": step.place[1],
                "from": step.source,
                "to": step.target,
                "bytes": step.bytes,
            }
            for step in steps
        ],
        as_json=False,
    )
    total = sum(step.bytes for step in steps)
    words = f"{len(steps)} replica(s) move, {total} bytes are copied"
    if rate is not None:
        words += f", {total / rate:.0f} s at least at {rate} bytes/s"
    output.say(f"{words}.")


def _check_room(node: int, target: Directory, steps: Sequence[Step]) -> None:
    needed = sum(step.bytes for step in steps if step.source != target.path) + SPARE_BYTES
    if 0 <= target.usable_bytes < needed:
        raise CommandFailed(
            f"{target.path} of node {node} has {target.usable_bytes} bytes free, and {needed} are "
            "needed; move fewer, or make room there."
        )


def _move(
    mover: DirectoryMover, node: int, steps: Sequence[Step], rate: int | None, *, waits: bool
) -> None:
    if rate is not None:
        mover.set_directory_rate(node, rate)
    refused = mover.send_to(node, {step.place: step.target for step in steps})
    for place, reason in refused.items():
        output.complain(f"{place[0]}-{place[1]}: {reason}")
    begun = [step for step in steps if step.place not in refused]
    if waits and begun:
        _wait(mover, node, begun)
    if waits or not begun:
        _verify(mover, node)
    else:
        output.say(
            f"They move. `ottla partitions move-dir --node {node} --verify` shows how far they are."
        )
    if refused:
        raise CommandFailed(f"{len(refused)} of {len(steps)} replicas do not move.")


def _wait(mover: DirectoryMover, node: int, steps: Sequence[Step]) -> None:
    """Until all have arrived, or are on their way no more."""
    total = sum(step.bytes for step in steps)
    try:
        with progress(total) as advance:
            while True:
                coming = _coming(mover.directories(node))
                left = [step for step in steps if step.place in coming]
                lacking = sum(
                    max(0, step.bytes - coming[step.place].coming[step.place].bytes)
                    for step in left
                )
                advance(total - lacking)
                if not left:
                    return
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        output.say(
            f"\nThey go on moving, throttled as they are. `ottla partitions move-dir --node {node} "
            "--verify` shows how far they are, and lifts the throttle in the end; --cancel lets "
            "them stay."
        )
        raise


def _verify(mover: DirectoryMover, node: int) -> None:
    moving = [row for row in _rows(mover.directories(node)) if row["moves_to"]]
    for row in moving:
        output.say(
            f"{row['topic']}-{row['partition']} moves to {row['moves_to']}: {row['copied']} of "
            f"{row['bytes']} bytes, {row['lag']} messages are missing."
        )
    if moving:
        output.say(f"{len(moving)} replica(s) of node {node} are on their way.")
        return
    if mover.directory_rate(node):
        mover.set_directory_rate(node, None)
        output.say(f"The throttle of node {node} is lifted.")
    output.say(f"Nothing moves between the directories of node {node}.")


def _cancel(
    mover: DirectoryMover,
    node: int,
    directories: Mapping[str, Directory],
    topics: set[str] | None,
) -> None:
    """Whoever is sent to where it lies stays there."""
    stay = {
        (row["topic"], row["partition"]): row["directory"]
        for row in _rows(directories)
        if row["moves_to"] and (topics is None or row["topic"] in topics)
    }
    refused = mover.send_to(node, stay) if stay else {}
    for place, reason in refused.items():
        output.complain(f"{place[0]}-{place[1]}: {reason}")
    output.say(f"{len(stay) - len(refused)} replica(s) stay where they are.")
    _verify(mover, node)
    if refused:
        raise CommandFailed(f"{len(refused)} replica(s) go on moving.")


def register(app: typer.Typer) -> None:
    app.command(
        "dirs",
        epilog=examples(
            "ottla partitions dirs --node 1", "ottla partitions dirs --node 1 --moving"
        ),
    )(on_cluster(show))
    app.command(
        "move-dir",
        epilog=examples(
            "ottla partitions move-dir --node 1 --topics orders --to /disk-2/ottla --dry-run",
            "ottla partitions move-dir --node 1 --from /disk-1/ottla --to /disk-2/ottla "
            "--throttle 20M",
            "ottla partitions move-dir --node 1 --verify",
            "ottla partitions move-dir --node 1 --topics orders --cancel",
        ),
    )(on_cluster(move))
