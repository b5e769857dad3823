"""What is due when."""

import random

from ottla.coordinators.timers import Timers


def test_deadlines_come_in_the_order_of_their_time():
    timers = Timers()
    for key, at_ms in [("c", 30), ("a", 10), ("b", 20)]:
        timers.set(key, at_ms)
    assert timers.first_ms() == 10
    assert [timers.pop_due(25) for _ in range(3)] == ["a", "b", None]
    assert timers.first_ms() == 30


def test_a_deadline_can_move_both_ways_and_be_cancelled():
    timers = Timers()
    timers.set("a", 10)
    timers.set("a", 50)
    assert timers.pop_due(49) is None
    timers.set("a", 5)
    assert timers.first_ms() == 5
    timers.cancel("a")
    assert timers.first_ms() is None
    timers.cancel("a")
    timers.set("a", 7)
    assert timers.pop_due(7) == "a"
    assert timers.pop_due(100) is None


def test_heartbeats_do_not_grow_the_heap():
    timers = Timers()
    for now_ms in range(0, 100_000, 10):
        timers.set("session", now_ms + 45_000)
        timers.first_ms()
    assert len(timers._heap) == 1


def test_it_agrees_with_a_plain_dictionary():
    chance = random.Random(7)
    timers, model = Timers(), {}
    for now_ms in range(3_000):
        key = chance.randrange(20)
        if chance.random() < 0.2:
            timers.cancel(key)
            model.pop(key, None)
        else:
            model[key] = now_ms + chance.randrange(100)
            timers.set(key, model[key])
        assert timers.first_ms() == min(model.values(), default=None)
        if chance.random() < 0.3:
            due = set()
            while (popped := timers.pop_due(now_ms)) is not None:
                due.add(popped)
            assert due == {key for key, at_ms in model.items() if at_ms <= now_ms}
            for key in due:
                del model[key]
        assert len(timers) == len(model)
