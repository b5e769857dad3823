"""How many bytes there are for replicas that are not in sync."""

from __future__ import annotations

import pytest

from ottla.broker.replication.throttles import BURST_S, PAUSE_S_MAX, ByteRate
from ottla.config.setting import LONG_MAX
from ottla.types import Now


class SteppedClock:
    def __init__(self) -> None:
        self.s = 100.0

    def steady_s(self) -> float:
        return self.s

    def wall_ms(self) -> int:
        return int(self.s * 1000)

    def now(self) -> Now:
        return Now(self.wall_ms(), self.wall_ms())


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


def test_without_a_rate_there_is_no_limit(clock: SteppedClock) -> None:
    rate = ByteRate(clock, lambda: LONG_MAX)
    rate.take(1 << 40)
    assert rate.room() == LONG_MAX
    assert rate.pause_s() == 0
    assert rate.bytes == 1 << 40


def test_over_time_it_is_the_rate_whatever_is_taken_at_once(clock: SteppedClock) -> None:
    rate = ByteRate(clock, lambda: 1_000)
    begun_s, taken = clock.s, 0
    for size in (300, 5_000, 1, 900, 12_000) * 20:
        while rate.pause_s():
            clock.s += rate.pause_s()
        assert rate.room() > 0
        rate.take(size)
        taken += size
    while rate.pause_s():
        clock.s += rate.pause_s()
    elapsed_s = clock.s - begun_s
    assert elapsed_s == pytest.approx(taken / 1_000 - BURST_S, abs=0.1)


def test_what_was_not_used_is_kept_for_a_moment_only(clock: SteppedClock) -> None:
    rate = ByteRate(clock, lambda: 1_000)
    rate.take(2_000)
    assert rate.room() <= 0
    clock.s += 3_600
    assert rate.room() == BURST_S * 1_000


def test_a_rate_that_is_raised_holds_at_once(clock: SteppedClock) -> None:
    rates = [1]
    rate = ByteRate(clock, lambda: rates[0])
    assert rate.room() > 0
    rate.take(1_000_000)
    assert rate.pause_s() == PAUSE_S_MAX, "a million seconds, but the rate may be changed"
    rates[0] = 10_000_000
    assert rate.room() > 0
    assert rate.pause_s() == 0
    rates[0] = 0
    assert rate.room() <= 0
    assert rate.pause_s() == PAUSE_S_MAX
