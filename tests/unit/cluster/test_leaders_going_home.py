"""The first replica of a partition leads again by itself: in time, and in small steps."""

from __future__ import annotations

import pytest

from ottla.cluster import homecoming
from unit.cluster.fleet import SESSION_MS, Fleet

INTERVAL_MS = 300_000


def away(partitions=1, **settings):
    """Everything is led by node 2; 1, where it belongs, is back and in sync."""
    fleet = Fleet(1, 2, **settings)
    fleet.create("t", assignments={n: [1, 2] for n in range(partitions)}, partitions=-1, factor=-1)
    fleet.lose(1)
    fleet.come_back(1)
    for index in range(partitions):
        assert fleet.partition(index=index).leader == 2
        fleet.new_isr(1, 2, index=index)
    return fleet


def wait(fleet, ms):
    """Time passes for brokers that live."""
    until = fleet.now_ms + ms
    while fleet.now_ms < until:
        fleet.pass_ms(min(SESSION_MS // 3, until - fleet.now_ms))
        for node_id in fleet.image.brokers:
            if not fleet.image.brokers[node_id].is_fenced:
                fleet.beat(node_id)
    fleet.settle()


def leaders(fleet):
    return [each.leader for each in fleet.image.topics_by_name["t"].partitions.values()]


def test_leaders_go_home_after_the_interval_and_not_before():
    fleet = away()
    due_ms = 1_000 + INTERVAL_MS
    wait(fleet, due_ms - fleet.now_ms - 1)
    assert leaders(fleet) == [2]
    wait(fleet, 1)
    assert leaders(fleet) == [1]


def test_they_go_in_small_steps(monkeypatch):
    monkeypatch.setattr(homecoming, "ELECTIONS_PER_STEP", 2)
    fleet = away(partitions=5)
    wait(fleet, 1_000 + INTERVAL_MS - fleet.now_ms)
    seen = [leaders(fleet).count(1)]
    for _ in range(3):
        wait(fleet, homecoming.STEP_PAUSE_MS)
        seen.append(leaders(fleet).count(1))
    assert seen == [2, 4, 5, 5]


@pytest.mark.parametrize("reason", ["off", "not in sync", "dead"])
def test_who_cannot_or_may_not_lead_does_not(reason):
    fleet = away(**({"auto_leader_rebalance_enable": False} if reason == "off" else {}))
    if reason == "not in sync":
        fleet.new_isr(2)
    elif reason == "dead":
        fleet.lose(1)
    epoch = fleet.partition().leader_epoch
    wait(fleet, 2 * INTERVAL_MS)
    assert leaders(fleet) == [2]
    assert fleet.partition().leader_epoch == epoch, "it is not elected again and again"


def test_a_new_controller_waits_a_whole_interval():
    fleet = away()
    wait(fleet, INTERVAL_MS // 2)
    fleet.lead()
    began_ms = fleet.now_ms
    wait(fleet, INTERVAL_MS - 1)
    assert leaders(fleet) == [2]
    wait(fleet, began_ms + INTERVAL_MS - fleet.now_ms)
    assert leaders(fleet) == [1]


def test_what_cannot_be_home_is_looked_at_again_after_the_next_interval():
    fleet = away()
    fleet.new_isr(2)
    wait(fleet, INTERVAL_MS)
    fleet.new_isr(1, 2)
    assert leaders(fleet) == [2]
    wait(fleet, INTERVAL_MS)
    assert leaders(fleet) == [1]
