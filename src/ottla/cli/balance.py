"""`ottla balance`: every node carries as much as every other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from ottla.cli import carried, moving, output
from ottla.cli.carried import SAMPLE_S, Carried
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.failures import CommandFailed
from ottla.cli.help import examples
from ottla.cli.move_plan import Place
from ottla.cli.mover import Mover
from ottla.cli.options import YesOption
from ottla.cluster.balance import BAND, Site, is_even, planned, skews
from ottla.errors import ErrorCode

PREFERRED: Final = 0
AT_ONCE: Final = 50

ThrottleOption = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        help="Copy no more per second and node, such as 20M; lifted when all have arrived.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")]
AtOnceOption = Annotated[
    int, typer.Option("--at-once", min=1, metavar="N", help="How many partitions move at a time.")
]
SampleOption = Annotated[
    float,
    typer.Option(
        "--sample",
        min=0,
        max=3600,
        metavar="SECONDS",
        help="How long to watch the partitions grow, for the traffic; 0 leaves it out.",
    ),
]


def balance(
    cluster: Cluster,
    dry_run: DryRunOption = False,
    throttle: ThrottleOption = None,
    at_once: AtOnceOption = AT_ONCE,
    sample_s: SampleOption = SAMPLE_S,
    yes: YesOption = False,
) -> None:
    """Moves partitions until leaders, replicas, bytes and traffic differ by 10 % at most.

    As few bytes as possible are moved, replicas stay on different hosts and racks, and what is even
    stays. What moves is shown before; Ctrl-C begins nothing more, and what is under way goes on:
    `ottla partitions reassign --cancel` takes that back.
    """
    rate = None if throttle is None else moving.rate_of(throttle)
    with Mover(cluster) as mover:
        even_out(mover, carried.look(mover, sample_s), rate, at_once, dry_run=dry_run, yes=yes)


def even_out(
    mover: Mover, now: Carried, rate: int | None, at_once: int, *, dry_run: bool, yes: bool
) -> None:
    """Shows the plan, asks, and carries it out."""
    _check(now)
    plan = planned(now.sites, now.partitions, now.drained, now.fenced)
    moves = now.moves(plan.after)
    closed = now.drained | now.fenced
    open_sites = [site for site in now.sites if site.id not in closed]
    if plan.stranded:
        names = ", ".join(f"{topic}-{index}" for topic, index in plan.stranded)
        output.say(f"On drained nodes, with nowhere to go: {names}.")
    if not moves:
        output.say(f"All nodes carry alike, or no move would help: {_skews(now, {}, open_sites)}.")
        if not dry_run:
            bring_leaders_home(mover)
        return
    moving.tell(moves, now.sizes(), rate)
    later = carried.after(now.partitions, plan.after)
    output.show(carried.rows(sorted(now.nodes), now.partitions, later), as_json=False)
    output.say(f"The nodes then differ by: {_skews(now, plan.after, open_sites)}.")
    if not is_even(open_sites, later):
        output.say(f"That is more than {BAND:.0%} somewhere, and no move would make it less.")
    if dry_run:
        return
    output.confirm(f"Move {len(moves)} partition(s)?", yes=yes)
    moving.move(mover, moves, rate, at_once=at_once)
    bring_leaders_home(mover)


def _check(now: Carried) -> None:
    for node in sorted(now.fenced):
        if now.held_by(node):
            raise CommandFailed(
                f"Node {node} does not serve, and has partitions. Balance when it is back, or "
                f"`ottla nodes drain {node}` first, which has others take them."
            )


def _skews(now: Carried, changes: Mapping[Place, tuple[int, ...]], sites: Sequence[Site]) -> str:
    found = skews(sites, carried.after(now.partitions, changes))
    return ", ".join(f"{name} {skew:.0%}" for name, skew in found.items())


def bring_leaders_home(mover: Mover) -> None:
    """The first replica of each partition leads, as the plan has counted on."""
    partitions, _ = mover.look()
    away = [place for place, seen in partitions.items() if seen.leader != seen.replicas[0]]
    answers = mover.elect(away, PREFERRED) if away else {}
    for (topic, index), (code, reason) in sorted(answers.items()):
        if code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
            output.complain(f"{topic}-{index}: its first replica does not lead: {reason}")


def register(root: typer.Typer) -> None:
    root.command(
        "balance",
        epilog=examples(
            "ottla balance --dry-run", "ottla balance --throttle 20M", "ottla balance --sample 60"
        ),
    )(on_cluster(balance))
