"""What is to move where: read from Kafka's JSON, or made for topics and nodes. No IO."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ottla.cli.failures import CommandFailed

# A topic and the number of a partition.
Place: TypeAlias = tuple[str, int]
Replicas: TypeAlias = Mapping[Place, Sequence[int]]


class Move(NamedTuple):
    place: Place
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adding(self) -> list[int]:
        return [node for node in self.after if node not in self.before]


def read_plan(text: str) -> dict[Place, list[int]]:
    """The replicas by partition; CommandFailed says what is wrong with the file."""
    try:
        given = json.loads(text)
        entries = given["partitions"]
        plan: dict[Place, list[int]] = {}
        for entry in entries:
            place = (_text(entry["topic"]), _number(entry["partition"]))
            if place in plan:
                raise CommandFailed(f"The plan names {place[0]}-{place[1]} twice.")
            plan[place] = [_number(node) for node in entry["replicas"]]
            if set(entry.get("log_dirs") or ()) - {"any"}:
                raise CommandFailed(
                    f"The plan names log_dirs of {place[0]}-{place[1]}; leave them out, or "
                    'write "any": `ottla partitions move-dir` moves between directories.'
                )
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(
            "The plan is not as Kafka's tools write it, "
            '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}: '
            f"{type(error).__name__} {error}."
        ) from None
    if not plan:
        raise CommandFailed("The plan names no partition.")
    return plan


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no topic")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number")
    return value


def plan_for(replicas: Replicas, nodes: Sequence[int]) -> dict[Place, list[int]]:
    """All these partitions on these nodes and no others; what lies there already stays."""
    held = Counter(
        node for assigned in replicas.values() for node in assigned if node in set(nodes)
    )
    led = Counter(assigned[0] for assigned in replicas.values() if assigned[0] in nodes)
    plan: dict[Place, list[int]] = {}
    for place in sorted(replicas):
        before = replicas[place]
        if len(before) > len(nodes):
            raise CommandFailed(
                f"{place[0]}-{place[1]} has {len(before)} replicas, and {len(nodes)} node(s) are "
                "given; name more, or write a plan with fewer replicas."
            )
        after = [node for node in before if node in nodes]
        while len(after) < len(before):
            chosen = min((n for n in nodes if n not in after), key=lambda n: (held[n], n))
            held[chosen] += 1
            after.append(chosen)
        # Who was to lead stays first if it may, else whoever leads the fewest.
        if after[0] != before[0]:
            after.sort(key=lambda node: led[node])
            led[after[0]] += 1
        plan[place] = after
    return plan


def moves_of(
    plan: Replicas, replicas: Replicas, nodes: Iterable[int], moving: Collection[Place] = ()
) -> list[Move]:
    """What the plan changes; CommandFailed where it names what is not there.

    Of what is moving already, `replicas` has those from before: also to go back is a change.
    """
    known = set(nodes)
    moves = []
    for place, after in plan.items():
        name = f"{place[0]}-{place[1]}"
        if place not in replicas:
            raise CommandFailed(f"There is no {name}; `ottla partitions list` shows them.")
        strange = sorted(set(after) - known)
        if strange:
            raise CommandFailed(
                f"{name}: there is no node {strange[0]}; the cluster has "
                f"{', '.join(map(str, sorted(known)))}."
            )
        if not after or len(set(after)) < len(after):
            raise CommandFailed(f"{name}: {list(after)} are not nodes, each once.")
        if tuple(after) != tuple(replicas[place]) or place in moving:
            moves.append(Move(place, tuple(replicas[place]), tuple(after)))
    return moves


def as_json(replicas: Replicas) -> str:
    """As Kafka's tools read it."""
    partitions = [
        {"topic": topic, "partition": index, "replicas": list(nodes)}
        for (topic, index), nodes in sorted(replicas.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions})
