"""A controller that balances: step by step, throttled, and with nothing left behind."""

from __future__ import annotations

from collections import Counter

import pytest

from ottla.cluster.image import NOT_MOVING
from ottla.cluster.self_balancing import MOVES_PER_STEP, Measured, is_within
from ottla.errors import ErrorCode
from unit.cluster.fleet import Fleet

PARTITIONS = 40
RATE = "leader.replication.throttled.rate"
LIST = "follower.replication.throttled.replicas"
MARK = "auto.balance.throttled.topics"
SET, APPEND, DELETE = 0, 2, 1
ALL = 4


def grown(**changes):
    """Two nodes with everything, and a third that has just come."""
    fleet = Fleet(1, 2, **changes)
    fleet.create("t", partitions=PARTITIONS, factor=2)
    fleet.alter(ALL, "", ("auto.balance.enable", SET, "true"))
    fleet.join(3)
    return fleet


def look(fleet):
    sizes = {("t", index): Measured(10 << 20) for index in range(PARTITIONS)}
    return fleet.ask("balance_step", sizes)


def moving(fleet):
    partitions = fleet.image.topics_by_name["t"].partitions
    return [index for index, each in partitions.items() if each.moving != NOT_MOVING]


def arrive(fleet):
    for index in moving(fleet):
        replicas = fleet.partition("t", index).replicas
        answer = fleet.new_isr(*replicas, index=index)
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED)


def throttles(fleet):
    return [
        (kind, name)
        for (kind, name), settings in fleet.image.configs.items()
        if {RATE, LIST, MARK} & settings.keys()
    ]


def held(fleet):
    partitions = fleet.image.topics_by_name["t"].partitions.values()
    return Counter(node for each in partitions for node in each.replicas)


def test_a_node_that_joins_gets_its_share_in_small_steps():
    fleet = grown()
    steps = 0
    while look(fleet):
        on_the_way = moving(fleet)
        assert len(on_the_way) <= MOVES_PER_STEP
        if on_the_way:
            assert fleet.image.broker_configs("3")[RATE] == str(10 << 20)
            assert LIST in fleet.image.topic_configs("t")
            assert look(fleet) == 0, "one step at a time"
            arrive(fleet)
        steps += 1
        assert steps < 50, "it never comes to an end"
    assert throttles(fleet) == []
    found = held(fleet)
    assert max(found.values()) - min(found.values()) <= 0.1 * 2 * PARTITIONS / 3
    assert steps > 2


def test_another_controller_lifts_the_throttle_of_the_one_before():
    fleet = grown()
    assert look(fleet)
    assert throttles(fleet)
    fleet.alter(ALL, "", ("auto.balance.enable", SET, "false"))
    fleet.lead()
    for node in (1, 2, 3):
        fleet.beat(node)
    arrive(fleet)
    assert look(fleet)
    assert throttles(fleet) == []
    assert look(fleet) == 0, "it is switched off"


def test_a_drained_node_is_emptied_and_what_has_nowhere_to_go_stays():
    fleet = grown()
    fleet.alter(ALL, "", ("drained.nodes", APPEND, "1"))
    while look(fleet):
        arrive(fleet)
    assert held(fleet)[1] == 0
    assert held(fleet).total() == 2 * PARTITIONS
    fleet.alter(ALL, "", ("drained.nodes", APPEND, "2"))
    while look(fleet):
        arrive(fleet)
    assert held(fleet).total() == 2 * PARTITIONS


@pytest.mark.parametrize("why", ["off", "night", "throttle", "away"])
def test_nothing_is_moved_while(why):
    fleet = grown()
    if why == "off":
        fleet.alter(ALL, "", ("auto.balance.enable", SET, "false"))
    elif why == "night":
        # The clock of a fleet stands at 22:13 UTC.
        fleet.alter(ALL, "", ("auto.balance.window", SET, "23:00-06:00"))
    elif why == "throttle":
        fleet.alter(ALL, "2", (RATE, SET, "5"))
    else:
        fleet.lose(2)
    assert look(fleet) == 0
    if why == "night":
        fleet.alter(ALL, "", ("auto.balance.window", SET, "22:00-06:00"))
        assert look(fleet)


def test_what_was_found_even_is_left_alone_until_nodes_come_or_go():
    fleet = Fleet(1, 2)
    fleet.alter(ALL, "", ("auto.balance.enable", SET, "true"))
    fleet.create("t", partitions=PARTITIONS, factor=1)
    assert look(fleet) == 0
    sizes = {("t", index): Measured((index + 1) << 30) for index in range(PARTITIONS)}
    assert fleet.ask("balance_step", sizes) == 0, "sizes alone are no reason"
    fleet.join(3)
    assert look(fleet)


def test_windows_may_go_over_midnight():
    minute = 60_000
    assert is_within("", 5)
    assert is_within("22:00-06:00", 23 * 60 * minute)
    assert is_within("22:00-06:00", 5 * 60 * minute)
    assert not is_within("22:00-06:00", 6 * 60 * minute)
    assert is_within("01:30-02:00", 90 * minute)
    assert not is_within("01:30-02:00", 120 * minute)


def test_a_window_that_is_none_is_refused():
    fleet = Fleet(1)
    for wrong in ("22-6", "25:00-06:00", "22:00"):
        answer = fleet.alter(ALL, "", ("auto.balance.window", SET, wrong))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
