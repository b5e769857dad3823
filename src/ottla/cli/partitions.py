"""`ottla partitions`: where they lie, moving them to other nodes, and who leads them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from ottla.cli import completion, directories, moving, output
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.move_plan import Move, Place, moves_of, plan_for, read_plan
from ottla.cli.mover import Mover, Seen
from ottla.cli.moving import named, rate_of, tell
from ottla.cli.options import JsonOption, YesOption
from ottla.errors import ErrorCode

PREFERRED: Final = 0
UNCLEAN: Final = 1

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
    rate = None if throttle is None else rate_of(throttle)
    with Mover(cluster) as mover:
        if verify:
            moving.verify(mover)
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
        holders = {node for move in moves for node in move.before}
        tell(moves, mover.sizes(sorted(holders)), rate)
        if dry_run:
            return
        output.confirm(f"Move {len(moves)} partition(s)?", yes=yes)
        moving.move(mover, moves, rate, waits=not no_wait)


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


def _cancel(mover: Mover, plan: Path | None, topics: Sequence[str]) -> None:
    named = set(_read(plan)) if plan is not None else None
    places = [
        place
        for place in sorted(mover.moving())
        if (named is None or place in named) and (not topics or place[0] in topics)
    ]
    if not places:
        output.say("None of these is being moved.")
    failures = mover.alter(dict.fromkeys(places)) if places else {}
    for place, reason in failures.items():
        output.complain(f"{place[0]}-{place[1]}: {reason}")
    if places:
        output.say(f"{len(places) - len(failures)} partition(s) are back where they were.")
    moving.verify(mover)
    if failures:
        raise CommandFailed(f"{len(failures)} partition(s) cannot go back.")


def _tell_leftovers(mover: Mover) -> None:
    leftovers = mover.throttled()
    if leftovers:
        output.say(
            f"{named(leftovers)} still have a throttle, and nothing moves: "
            "`ottla partitions reassign --verify` lifts it."
        )


def _check_topics(topics: Sequence[str], partitions: Mapping[Place, Seen]) -> None:
    known = {topic for topic, _ in partitions}
    for topic in topics:
        if topic not in known:
            raise CommandFailed(f"There is no topic {topic}; `ottla topics list` shows them.")


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
    directories.register(app)
    root.add_typer(app, name="partitions")
