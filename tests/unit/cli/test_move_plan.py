"""What a plan is, and how one is made for topics and nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from ottla.cli.failures import CommandFailed
from ottla.cli.move_plan import Move, as_json, moves_of, plan_for, read_plan

REPLICAS = {("t", index): (1 + index % 3, 1 + (index + 1) % 3) for index in range(6)}


def test_a_plan_is_what_kafkas_tools_write() -> None:
    text = (
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,3],'
        '"log_dirs":["any","any"]}]}'
    )
    assert read_plan(text) == {("t", 0): [2, 3]}
    assert read_plan(as_json(REPLICAS)) == {place: list(on) for place, on in REPLICAS.items()}


def test_a_plan_that_names_directories_is_not_half_carried_out() -> None:
    entry = '{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/disk"]}'
    with pytest.raises(CommandFailed, match="names log_dirs of t-0"):
        read_plan(f'{{"partitions": [{entry}]}}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"partitions": 1}',
        '{"partitions": [{"topic": 1, "partition": 0, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}',
        '{"partitions": [{"topic": "t", "replicas": [1]}]}',
    ],
)
def test_what_is_no_plan_is_said_so(text: str) -> None:
    with pytest.raises(CommandFailed, match="The plan is not as Kafka's tools write it"):
        read_plan(text)


def test_a_plan_names_each_partition_once_and_at_least_one() -> None:
    entry = '{"topic": "t", "partition": 0, "replicas": [1]}'
    with pytest.raises(CommandFailed, match="names t-0 twice"):
        read_plan(f'{{"partitions": [{entry}, {entry}]}}')
    with pytest.raises(CommandFailed, match="names no partition"):
        read_plan('{"partitions": []}')


def test_only_what_has_to_moves_and_the_nodes_get_equal_shares() -> None:
    plan = plan_for(REPLICAS, [2, 3, 4])
    assert all(set(after) <= {2, 3, 4} and len(set(after)) == 2 for after in plan.values())
    for place, before in REPLICAS.items():
        assert {node for node in before if node != 1} <= set(plan[place]), "it could stay"
    held = Counter(node for after in plan.values() for node in after)
    assert max(held.values()) - min(held.values()) <= 1
    led = Counter(after[0] for after in plan.values())
    assert max(led.values()) - min(led.values()) <= 1
    assert plan_for(REPLICAS, [1, 2, 3]) == {place: list(on) for place, on in REPLICAS.items()}


def test_too_few_nodes_are_said_so() -> None:
    with pytest.raises(CommandFailed, match="t-0 has 2 replicas, and 1 node"):
        plan_for(REPLICAS, [4])


def test_moves_are_what_changes() -> None:
    plan = {("t", 0): [1, 2], ("t", 1): [4, 3]}
    move = Move(("t", 1), (2, 3), (4, 3))
    assert moves_of(plan, REPLICAS, [1, 2, 3, 4]) == [move]
    assert move.adding == [4]
    assert moves_of(plan, REPLICAS, [1, 2, 3, 4], moving=[("t", 0)])[0].after == (1, 2)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({("u", 0): [1]}, "There is no u-0"),
        ({("t", 0): [1, 9]}, "t-0: there is no node 9; the cluster has 1, 2, 3"),
        ({("t", 0): [1, 1]}, "not nodes, each once"),
        ({("t", 0): []}, "not nodes, each once"),
    ],
)
def test_what_is_not_there_cannot_be_moved(plan: dict[tuple[str, int], list[int]], words: str):
    with pytest.raises(CommandFailed, match=words):
        moves_of(plan, REPLICAS, [1, 2, 3])
