"""Moving partitions as a person sees it: the plan, the way, its end, and a stop in between."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ottla.cli import output
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.move_plan import Move, Place, as_json
from ottla.cli.mover import BROKER, Mover

POLL_S: Final = 0.5
UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def tell(moves: Sequence[Move], sizes: Mapping[Place, int], rate: int | None) -> None:
    """The plan, the bytes it copies, how long that takes at least, and the way back."""
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


def move(
    mover: Mover,
    moves: Sequence[Move],
    rate: int | None,
    *,
    waits: bool = True,
    at_once: int | None = None,
) -> None:
    """Begins all, or no more than so many at once; returns when all have arrived, if it waits."""
    if rate is not None:
        mover.throttle(moves, rate)
    try:
        refused = _go(mover, moves, waits=waits, at_once=at_once)
    except BaseException:
        _lift_if_still(mover, rate)
        raise
    if not waits:
        _lift_if_still(mover, rate)
    for place, reason in refused.items():
        output.complain(f"{place[0]}-{place[1]}: {reason}")
    if waits:
        verify(mover)
    elif len(refused) < len(moves):
        output.say("They move. `ottla partitions reassign --verify` shows how far they are.")
    if refused:
        raise CommandFailed(f"{len(refused)} of {len(moves)} partitions do not move.")


def _lift_if_still(mover: Mover, rate: int | None) -> None:
    """Where nothing moves, nobody would lift it later."""
    if rate is not None and not mover.moving():
        mover.unthrottle(mover.throttled())


def _go(
    mover: Mover, moves: Sequence[Move], *, waits: bool, at_once: int | None
) -> dict[Place, str]:
    """What was refused, and why."""
    left, under_way = deque(moves), set[Place]()
    refused: dict[Place, str] = {}
    try:
        with progress(len(moves)) as advance:
            while left or (under_way and waits):
                free = len(left) if at_once is None else at_once - len(under_way)
                turn = [left.popleft() for _ in range(min(free, len(left)))]
                if turn:
                    answer = mover.alter({each.place: each.after for each in turn})
                    refused |= answer
                    under_way |= {each.place for each in turn} - answer.keys()
                if waits:
                    under_way &= mover.moving().keys()
                    advance(len(moves) - len(left) - len(under_way))
                    if under_way:
                        time.sleep(POLL_S)
    except KeyboardInterrupt:
        output.say(
            "\nThey go on moving, throttled as they are. `ottla partitions reassign --verify` "
            "shows how far they are, and lifts the throttle in the end; --cancel takes them back."
        )
        if left:
            output.say(f"{len(left)} have not begun, and stay where they are.")
        raise
    return refused


@contextmanager
def progress(total: int) -> Iterator[Any]:
    """A bar where somebody looks; else nothing."""
    if not sys.stderr.isatty():
        yield lambda arrived: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("arrived", total=total)
        yield lambda arrived: progress.update(task, completed=arrived)


def verify(mover: Mover) -> None:
    moving = mover.moving()
    for (topic, index), ongoing in sorted(moving.items()):
        output.say(f"{topic}-{index} moves, from {ongoing.removing} to {ongoing.adding}.")
    if moving:
        output.say(f"{len(moving)} partition(s) are on their way.")
        return
    leftovers = mover.throttled()
    if leftovers:
        mover.unthrottle(leftovers)
        output.say(f"The throttle of {named(leftovers)} is lifted.")
    output.say("No partition is being moved.")


def named(resources: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"node {name}" if kind == BROKER else name for kind, name in resources)


def rate_of(text: str) -> int:
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or unit not in UNITS or not int(digits):
        raise WrongUsage(f"--throttle {text} are no bytes per second; write such as 500K or 20M.")
    return int(digits) * UNITS[unit]
