"""Nodes that give up what they hold, and others that take it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from ottla.cli import carried, moving, output
from ottla.cli.balance import bring_leaders_home
from ottla.cli.carried import Carried
from ottla.cli.failures import CommandFailed
from ottla.cli.move_plan import Move, Place
from ottla.cli.mover import Mover
from ottla.cluster.balance import planned

NAMED_MAX: Final = 20
# New partitions may have come between the plan and its beginning, not after it.
ROUNDS_MAX: Final = 5


def check_known(now: Carried, node_id: int) -> None:
    """A node that is gone may still have partitions to its name."""
    if node_id not in now.nodes and not now.held_by(node_id):
        known = ", ".join(map(str, now.nodes))
        raise CommandFailed(f"There is no node {node_id}; the cluster has {known}.")


def evacuation(now: Carried, node_id: int, *, may_share_racks: bool) -> list[Move]:
    """Where what the node holds goes; CommandFailed names what has nowhere to go."""
    held = now.held_by(node_id)
    closed = now.drained | now.fenced
    plan = planned(
        now.sites,
        now.partitions,
        {node_id},
        closed,
        evens=False,
        may_share_racks=may_share_racks,
    )
    if plan.stranded:
        raise CommandFailed(
            f"{len(plan.stranded)} of {len(held)} partition(s) of node {node_id} have nowhere to "
            f"go: {_named(plan.stranded)}. {_remedy(now, plan.stranded)} Nothing was changed."
        )
    return now.moves(plan.after)


def _named(places: Collection[Place]) -> str:
    names = [f"{topic}-{index}" for topic, index in sorted(places)]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _remedy(now: Carried, stranded: Iterable[Place]) -> str:
    if any(place in now.moving for place in stranded):
        return "Some are on their way already; wait for them, or take them back."
    if any(now.partitions[place].is_fixed for place in stranded):
        return "Nobody leads some of them; bring back a node that has them."
    return (
        "Each replica needs a host of its own, and a rack where it had one; add a node, or give "
        "--share-racks where only racks are missing."
    )


def empty(
    mover: Mover,
    now: Carried,
    node_id: int,
    moves: list[Move],
    rate: int | None,
    at_once: int,
    *,
    may_share_racks: bool,
) -> None:
    """Carries the moves out, and those that have become necessary meanwhile."""
    _mark(mover, node_id)
    for _ in range(ROUNDS_MAX):
        if moves:
            moving.move(mover, moves, rate, at_once=at_once)
            bring_leaders_home(mover)
        now = carried.look(mover)
        if not now.held_by(node_id):
            output.say(f"Node {node_id} holds nothing and leads nothing.")
            return
        moves = evacuation(now, node_id, may_share_racks=may_share_racks)
    raise CommandFailed(f"Node {node_id} gets new partitions all the time; who places them there?")


def _mark(mover: Mover, node_id: int) -> None:
    try:
        mover.set_drained(node_id, drained=True)
    except CommandFailed as failure:
        output.say(f"New partitions may still be placed on node {node_id}: {failure}")


def undo(mover: Mover, now: Carried, node_id: int) -> None:
    """What is on its way from the node stays there, and it gets new partitions again."""
    places = [place for place, ongoing in now.moving.items() if node_id in ongoing.removing]
    refused = mover.alter(dict.fromkeys(places)) if places else {}
    for place, reason in refused.items():
        output.complain(f"{place[0]}-{place[1]}: {reason}")
    mover.set_drained(node_id, drained=False)
    output.say(
        f"Node {node_id} gets new partitions again, and keeps {len(places) - len(refused)} that "
        "were leaving. What has left is brought back by `ottla balance`."
    )
    moving.verify(mover)
    if refused:
        raise CommandFailed(f"{len(refused)} partition(s) cannot stay.")
