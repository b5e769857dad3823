"""`ottla partitions`: where they lie, moving them to other nodes, and who leads them."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ottla.cli import completion, output
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.move_plan import Move, Place, as_json, moves_of, plan_for, read_plan
from ottla.cli.mover import BROKER, Mover, Seen
from ottla.cli.options import JsonOption, YesOption
from ottla.errors import ErrorCode

POLL_S: Final = 0.5
PREFERRED: Final = 0
UNCLEAN: Final = 1
UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

app = typer.Typer(
    help="Partitions: where they lie, moving them between nodes, and who leads them.",
    no_args_is_help=True,
    epilog=examples(
        "ottla partitions list orders",
        "ottla partitions reassign --topics orders --to 2,3,4 --dry-run",
        "ottla partitions reassign --topics orders --to 2,3,4 --throttle 20M",
        "ottla partitions elect-leaders",
    ),
)

TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", show_default=False, autocompletion=completion.topics),
]


@app.command(
    "list",
    epilog=examples(
        "ottla partitions list", "ottla partitions list orders", "ottla partitions list --moving"
    ),
)
@on_cluster
def show(
    cluster: Cluster,
    topics: TopicsArgument = None,
    only_moving: Annotated[
        bool, typer.Option("--moving", help="Only those that are being moved.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows who leads each partition, where its replicas are, and which of them come and go."""
    with Mover(cluster) as mover:
        partitions, _ = mover.look()
        moving = mover.moving()
        _check_topics(topics or (), partitions)
        rows = []
        for place, seen in sorted(partitions.items()):
            on_the_way = moving.get(place)
            if (topics and place[0] not in topics) or (only_moving and on_the_way is None):
                continue
            rows.append(
                {
                    "topic": place[0],
                    "partition": place[1],
                    "leader": None if seen.leader < 0 else seen.leader,
                    "replicas": list(seen.replicas),
                    "in_sync": list(seen.isr),
                    "adding": [] if on_the_way is None else list(on_the_way.adding),
                    "removing": [] if on_the_way is None else list(on_the_way.removing),
                }
            )
        output.show(rows, as_json=as_json)
        if not moving:
            _tell_leftovers(mover)


@app.command(
    "reassign",
    epilog=examples(
        "ottla partitions reassign --topics orders,clicks --to 2,3,4 --dry-run",
        "ottla partitions reassign plan.json --throttle 20M",
        "ottla partitions reassign --verify",
        "ottla partitions reassign --topics orders --cancel",
    ),
)
@on_cluster
def reassign(
    cluster: Cluster,
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PLAN]", help="A plan in the JSON of Kafka's tools.", show_default=False
        ),
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option("--topics", metavar="TOPIC,...", help="Instead of a plan: these topics …"),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NODE,...", help="… on these nodes.")
    ] = None,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            help="Copy no more per second and node, such as 20M; lifted when all have arrived. "
            "Given again while they move, it changes the rate.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Back to where they were before they moved.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Show what still moves; when nothing does, lift throttles."),
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until all have arrived.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Moves partitions to other nodes, and shows before what that means.

    A partition has arrived when its new replicas are in sync; only then the old ones go. The move
    goes on without this command, too: after Ctrl-C, --verify shows how far it is.
    """
    rate = None if throttle is None else _rate(throttle)
    with Mover(cluster) as mover:
        if verify:
            _verify(mover)
            return
        partitions, nodes = mover.look()
        names = [] if topics is None else topics.split(",")
        _check_topics(names, partitions)
        if cancel:
            _cancel(mover, plan, names)
            return
        moves = _wanted(_before(mover, partitions), nodes, mover.moving(), plan, names, to)
        if not moves:
            output.say("All partitions are where they are to be.")
            return
        _tell(mover, moves, rate)
        if dry_run:
            return
        output.confirm(f"Move {len(moves)} partition(s)?", yes=yes)
        _move(mover, moves, rate, waits=not no_wait)


def _before(mover: Mover, partitions: Mapping[Place, Seen]) -> dict[Place, tuple[int, ...]]:
    """The replicas of each partition, without those that a move is adding."""
    moving = mover.moving()
    return {
        place: tuple(
            node
            for node in seen.replicas
            if place not in moving or node not in moving[place].adding
        )
        for place, seen in partitions.items()
    }


def _wanted(
    replicas: Mapping[Place, tuple[int, ...]],
    nodes: Collection[int],
    moving: Collection[Place],
    plan: Path | None,
    topics: Sequence[str],
    to: str | None,
) -> list[Move]:
    if plan is not None:
        if topics or to:
            raise WrongUsage("Give a plan, or --topics and --to, not both.")
        return moves_of(_read(plan), replicas, nodes, moving)
    if not topics or not to:
        raise WrongUsage("Say what is to move: a plan, or --topics TOPIC,... with --to NODE,...")
    targets = to.split(",")
    if not all(node.isdecimal() for node in targets) or len(set(targets)) < len(targets):
        raise WrongUsage(f"--to {to} are not numbers of nodes, each once.")
    chosen = {place: nodes for place, nodes in replicas.items() if place[0] in topics}
    return moves_of(plan_for(chosen, [int(node) for node in targets]), replicas, nodes, moving)


def _read(plan: Path) -> dict[Place, list[int]]:
    try:
        return read_plan(plan.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise WrongUsage(f"Cannot read {plan}: {reason}.") from None


def _tell(mover: Mover, moves: Sequence[Move], rate: int | None) -> None:
    """The plan, the bytes it copies, how long that takes at least, and the way back."""
    holders = {node for move in moves for node in move.before}
    sizes = mover.sizes(sorted(holders))
    rows: list[dict[str, Any]] = []
    incoming: dict[int, int] = {}
    for move in moves:
        size = sizes.get(move.place, 0)
        for node in move.adding:
            incoming[node] = incoming.get(node, 0) + size
        rows.append(
            {
                "topic": move.place[0],
                "partition": move.place[1],
                "from": list(move.before),
                "to": list(move.after),
                "bytes": size * len(move.adding),
            }
        )
    output.show(rows, as_json=False)
    total = sum(incoming.values())
    words = f"{len(moves)} partition(s) move, {total} bytes are copied"
    if rate is not None and incoming:
        words += f", {max(incoming.values()) / max(1, rate):.0f} s at least at {rate} bytes/s"
    output.say(f"{words}. Now they are:")
    output.say(as_json({move.place: move.before for move in moves}))


def _move(mover: Mover, moves: Sequence[Move], rate: int | None, *, waits: bool) -> None:
    if rate is not None:
        mover.throttle(moves, rate)
    refused: dict[Place, str] = {}
    try:
        refused = mover.alter({move.place: move.after for move in moves})
    finally:
        if rate is not None and not mover.moving():
            mover.unthrottle(mover.throttled())
    for place, reason in refused.items():
        output.complain(f"{place[0]}-{place[1]}: {reason}")
    begun = [move.place for move in moves if move.place not in refused]
    if waits:
        _wait(mover, begun)
        _verify(mover)
    elif begun:
        output.say("They move. `ottla partitions reassign --verify` shows how far they are.")
    if refused:
        raise CommandFailed(f"{len(refused)} of {len(moves)} partitions do not move.")


def _wait(mover: Mover, places: Collection[Place]) -> None:
    """Until none of these moves any more."""
    left = set(places)
    try:
        with _progress(len(left)) as tell:
            while left:
                left &= mover.moving().keys()
                tell(len(places) - len(left))
                if left:
                    time.sleep(POLL_S)
    except KeyboardInterrupt:
        output.say(
            "\nThey go on moving, throttled as they are. `ottla partitions reassign --verify` "
            "shows how far they are, and lifts the throttle in the end; --cancel takes them back."
        )
        raise


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar where somebody looks; else nothing."""
    if not sys.stderr.isatty():
        yield lambda arrived: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("arrived", total=total)
        yield lambda arrived: progress.update(task, completed=arrived)


def _verify(mover: Mover) -> None:
    moving = mover.moving()
    for (topic, index), ongoing in sorted(moving.items()):
        output.say(f"{topic}-{index} moves, from {ongoing.removing} to {ongoing.adding}.")
    if moving:
        output.say(f"{len(moving)} partition(s) are on their way.")
        return
    leftovers = mover.throttled()
    if leftovers:
        mover.unthrottle(leftovers)
        output.say(f"The throttle of {_named(leftovers)} is lifted.")
    output.say("No partition is being moved.")


def _cancel(mover: Mover, plan: Path | None, topics: Sequence[str]) -> None:
    moving = mover.moving()
    named = set(_read(plan)) if plan is not None else None
    places = [
        place
        for place in sorted(moving)
        if (named is None or place in named) and (not topics or place[0] in topics)
    ]
    if not places:
        output.say("None of these is being moved.")
    failures = mover.alter(dict.fromkeys(places)) if places else {}
    for place, reason in failures.items():
        output.complain(f"{place[0]}-{place[1]}: {reason}")
    if places:
        output.say(f"{len(places) - len(failures)} partition(s) are back where they were.")
    _verify(mover)
    if failures:
        raise CommandFailed(f"{len(failures)} partition(s) cannot go back.")


def _tell_leftovers(mover: Mover) -> None:
    leftovers = mover.throttled()
    if leftovers:
        output.say(
            f"{_named(leftovers)} still have a throttle, and nothing moves: "
            "`ottla partitions reassign --verify` lifts it."
        )


def _named(resources: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"node {name}" if kind == BROKER else name for kind, name in resources)


def _check_topics(topics: Sequence[str], partitions: Mapping[Place, Seen]) -> None:
    known = {topic for topic, _ in partitions}
    for topic in topics:
        if topic not in known:
            raise CommandFailed(f"There is no topic {topic}; `ottla topics list` shows them.")


def _rate(text: str) -> int:
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or unit not in UNITS or not int(digits):
        raise WrongUsage(f"--throttle {text} are no bytes per second; write such as 500K or 20M.")
    return int(digits) * UNITS[unit]


@app.command(
    "elect-leaders",
    epilog=examples(
        "ottla partitions elect-leaders",
        "ottla partitions elect-leaders orders",
        "ottla partitions elect-leaders orders --unclean",
    ),
)
@on_cluster
def elect_leaders(
    cluster: Cluster,
    topics: TopicsArgument = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Where there is no leader, take any replica that lives: what only the others had "
            "is lost.",
        ),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Makes the first replica of each partition its leader, where it is in sync."""
    if unclean:
        output.confirm("Messages may be lost by that. Go on?", yes=yes)
    with Mover(cluster) as mover:
        partitions, _ = mover.look()
        _check_topics(topics or (), partitions)
        places = [place for place in sorted(partitions) if place[0] in topics] if topics else None
        answers = mover.elect(places, UNCLEAN if unclean else PREFERRED)
    elected, failures = 0, 0
    for (topic, index), (code, reason) in sorted(answers.items()):
        if code == ErrorCode.NONE:
            elected += 1
        elif code != ErrorCode.ELECTION_NOT_NEEDED:
            failures += 1
            output.complain(f"{topic}-{index}: {reason}")
    output.say(f"{elected} partition(s) have another leader.")
    if failures:
        raise CommandFailed(f"{failures} partition(s) keep the leader that they have, or none.")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="partitions")
