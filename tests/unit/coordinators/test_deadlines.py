"""What is due when."""

import random

from ottla.coordinators.deadlines import Deadlines


def test_deadlines_come_in_the_order_of_their_time():
    deadlines = Deadlines()
    for key, at_ms in [("c", 30), ("a", 10), ("b", 20)]:
        deadlines.set(key, at_ms)
    assert deadlines.first_ms() == 10
    assert [deadlines.pop_due(25) for _ in range(3)] == ["a", "b", None]
    assert deadlines.first_ms() == 30


def test_a_deadline_can_move_both_ways_and_be_cancelled():
    deadlines = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 50)
    assert deadlines.pop_due(49) is None
    deadlines.set("a", 5)
    assert deadlines.first_ms() == 5
    deadlines.cancel("a")
    assert deadlines.first_ms() is None
    deadlines.cancel("a")
    deadlines.set("a", 7)
    assert deadlines.pop_due(7) == "a"
    assert deadlines.pop_due(100) is None


def test_heartbeats_do_not_grow_the_heap():
    deadlines = Deadlines()
    for now_ms in range(0, 100_000, 10):
        deadlines.set("session", now_ms + 45_000)
        deadlines.first_ms()
    assert len(deadlines._heap) == 1


def test_it_agrees_with_a_plain_dictionary():
    chance = random.Random(7)
    deadlines, model = Deadlines(), {}
    for now_ms in range(3_000):
        key = chance.randrange(20)
        if chance.random() < 0.2:
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            model[key] = now_ms + chance.randrange(100)
            deadlines.set(key, model[key])
        assert deadlines.first_ms() == min(model.values(), default=None)
        if chance.random() < 0.3:
            due = set()
            while (popped := deadlines.pop_due(now_ms)) is not None:
                due.add(popped)
            assert due == {key for key, at_ms in model.items() if at_ms <= now_ms}
            for key in due:
                del model[key]
        assert len(deadlines) == len(model)
