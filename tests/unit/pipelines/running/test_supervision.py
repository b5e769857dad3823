"""Flows that fail, come back, are given up or stopped; told as moves of a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ottla.pipelines.language.model import Restarts
from ottla.pipelines.language.problems import BadPipeline, Problem
from ottla.pipelines.running.causes import Cause
from ottla.pipelines.running.supervision import (
    STARTING_MAX,
    GivenUp,
    Patience,
    Supervised,
    Unusable,
    supervise,
)

PASSING = Cause("the broker is away", is_final=False)
FINAL = Cause("bad record", is_final=True)
LOST = Cause("the JVM has gone", is_final=False, is_spark_lost=True)
UNSERIALIZABLE = Cause("Illegal size", is_final=False, is_unserializable=True)
MISSING = Cause("no topic", is_final=False, is_missing_topic=True)


class Trying:
    """An attempt whose course a test writes: a list of looks, then an end."""

    def __init__(self, *looks: int, end: Cause | None = None, lasts: bool = False) -> None:
        self.looks = list(looks)
        self.end = end
        self.lasts = lasts
        self.at_work = False
        self.starting = False
        self.stopped = 0

    def is_starting(self) -> bool:
        return self.starting

    def is_over(self) -> bool:
        return bool(self.stopped) or (not self.lasts and not self.looks)

    def failure(self) -> Cause | None:
        return self.end

    def look(self) -> int:
        return self.looks.pop(0) if self.looks else 0

    def is_at_work(self) -> bool:
        return self.at_work

    def stop(self) -> None:
        self.stopped += 1


class Story:
    """A flow whose attempts are given one after the other; notes what it tells."""

    def __init__(self, *attempts: Trying | BaseException, restarts: Restarts | None = None) -> None:
        self.attempts = list(attempts)
        self.pauses: list[float] = []
        self.unfinished: list[str] = []
        self.flow = Supervised(
            "out",
            self._begin,
            restarts or Restarts(max=3, backoff_s=1.0, backoff_s_max=3.0),
            failing=lambda error: Cause(str(error), is_final=isinstance(error, TypeError)),
            restarting=lambda name, pause_s, cause: self.pauses.append(pause_s),
            unfinished=lambda name, cause: self.unfinished.append(cause.text),
        )

    def _begin(self) -> Trying:
        attempt = self.attempts.pop(0)
        if isinstance(attempt, BaseException):
            raise attempt
        return attempt

    def until(self, end: float) -> None:
        now = 0.0
        while now < end and not self.flow.is_over:
            self.flow.step(now)
            now += 0.1


def failing(count: int) -> list[Trying]:
    return [Trying(end=PASSING) for _ in range(count)]


def test_pauses_double_up_to_their_bound() -> None:
    patience = Patience(Restarts(max=6, backoff_s=1.0, backoff_s_max=10.0))
    pauses = [patience.pause_s() for _ in range(7)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, None]
    patience.succeeded()
    assert patience.pause_s() == 1.0


def test_no_restarts_at_all() -> None:
    assert Patience(Restarts(max=0)).pause_s() is None


def test_flow_comes_back_after_pauses() -> None:
    story = Story(*failing(2), Trying(1))
    story.until(2.5)
    assert story.attempts, "the second pause has not passed"
    story.until(20)
    assert story.pauses == [1.0, 2.0]
    assert story.flow.is_over


def test_failed_start_is_a_failed_attempt() -> None:
    story = Story(OSError("no disk"), Trying(1))
    story.until(20)
    assert (story.pauses, story.flow.is_over) == ([1.0], True)


def test_mistakes_in_starting_are_not_tried_again() -> None:
    story = Story(TypeError("start() takes no such thing"))
    with pytest.raises(GivenUp):
        story.until(20)


def test_bad_file_is_not_a_failed_attempt() -> None:
    story = Story(BadPipeline([Problem("no such column")]))
    with pytest.raises(BadPipeline):
        story.until(20)


def test_a_successful_batch_counts_failures_anew() -> None:
    each = [Trying(1, end=PASSING) for _ in range(8)]
    story = Story(*each, Trying(1))
    story.until(60)
    assert story.pauses == [1.0] * 8
    assert story.flow.is_over


def test_bound_is_reached_without_a_success() -> None:
    story = Story(*failing(9))
    with pytest.raises(GivenUp) as end:
        story.until(60)
    assert story.pauses == [1.0, 2.0, 3.0]
    assert (end.value.tries, end.value.cause) == (3, PASSING)


def test_final_cause_is_not_tried_again() -> None:
    story = Story(Trying(end=FINAL))
    with pytest.raises(GivenUp) as end:
        story.until(60)
    assert (story.pauses, end.value.tries) == ([], 0)


def test_missing_topic_is_final_only_before_a_success() -> None:
    unknown = Story(Trying(end=MISSING), Trying(1))
    with pytest.raises(GivenUp):
        unknown.until(60)
    assert unknown.pauses == []
    story = Story(Trying(1, end=MISSING), Trying(1))
    story.until(60)
    assert story.pauses == [1.0]


class Clock:
    def __init__(self, moves: Callable[[float], None] = lambda now: None) -> None:
        self.now = 0.0
        self._moves = moves

    def __call__(self) -> float:
        self.now += 0.05
        self._moves(self.now)
        return self.now


def supervised(*stories: Story, clock: Clock | None = None) -> list[str]:
    """Runs until all are over; returns what was said."""
    said: list[str] = []
    stop, stop_now = threading.Event(), threading.Event()
    stop.wait = stop_now.wait = lambda timeout=None: False  # type: ignore[method-assign]
    moving = clock or Clock()
    supervise(
        [story.flow for story in stories],
        stop=stop, stop_now=stop_now, stopping=lambda: said.append("stopping"), clock=moving,
    )  # fmt: skip
    return said


def test_others_go_on_while_one_waits() -> None:
    slow, quick = Story(*failing(3), Trying(1)), Story(Trying(1, 1, 1))
    assert supervised(slow, quick) == []
    assert slow.pauses == [1.0, 2.0, 3.0]


def test_all_are_stopped_when_one_is_given_up() -> None:
    lasting = Trying(lasts=True)
    with pytest.raises(GivenUp):
        supervised(Story(Trying(end=FINAL)), Story(lasting))
    assert lasting.stopped == 1


def test_all_are_stopped_when_a_sink_refuses_to_start() -> None:
    lasting = Trying(lasts=True)
    with pytest.raises(BadPipeline):
        supervised(Story(lasting), Story(BadPipeline([Problem("no such column")])))
    assert lasting.stopped == 1


def test_batch_at_work_is_finished_when_another_flow_is_given_up() -> None:
    lasting = Trying(lasts=True)
    lasting.at_work = True

    def finish(now: float) -> None:
        if now > 10:
            lasting.at_work = False
        assert not lasting.stopped or now > 10

    with pytest.raises(GivenUp):
        supervised(Story(Trying(end=FINAL)), Story(lasting), clock=Clock(finish))
    assert lasting.stopped == 1


def test_batch_that_never_ends_does_not_hold_the_end() -> None:
    lasting = Trying(lasts=True)
    lasting.at_work = True
    with pytest.raises(GivenUp):
        supervised(Story(Trying(end=FINAL)), Story(lasting))
    assert lasting.stopped == 1


def stopping(story: Story, *, now: bool = False) -> None:
    """`stop` (or `stop_now`) is set before the first step."""
    stop, stop_now = threading.Event(), threading.Event()
    (stop_now if now else stop).set()
    story.flow.step(0.0)
    supervise([story.flow], stop=stop, stop_now=stop_now, stopping=lambda: None)


def test_stop_waits_for_the_batch_and_not_for_the_next_one() -> None:
    attempt = Trying(2, 0, 0, 1, 1, lasts=True)
    attempt.at_work = True
    stopping(Story(attempt))
    assert attempt.stopped == 1
    assert attempt.looks == [], "the look after the stop has seen the rest"


def test_stop_between_batches_is_at_once() -> None:
    attempt = Trying(lasts=True)
    stopping(Story(attempt))
    assert attempt.stopped == 1


def test_stop_now_does_not_wait() -> None:
    attempt = Trying(lasts=True)
    attempt.at_work = True
    stopping(Story(attempt), now=True)
    assert attempt.stopped == 1


def test_failure_of_the_last_batch_is_told() -> None:
    story = Story(Trying(1, end=PASSING))
    stopping(story)
    assert story.unfinished == [PASSING.text]


def test_stop_while_a_flow_waits_for_its_next_attempt() -> None:
    story = Story(*failing(1), Trying(lasts=True))
    story.until(0.25)
    assert story.pauses == [1.0]
    stop = threading.Event()
    stop.set()
    supervise([story.flow], stop=stop, stop_now=threading.Event(), stopping=lambda: None)
    assert len(story.attempts) == 1, "no other attempt was made"


def test_few_flows_start_at_a_time() -> None:
    attempts = [Trying(lasts=True) for _ in range(5)]
    stories = [Story(attempt) for attempt in attempts]
    together: list[int] = []

    def begun() -> list[Trying]:
        pairs = zip(attempts, stories, strict=True)
        return [one for one, story in pairs if not story.attempts and one.starting]

    def move(now: float) -> None:
        together.append(len(begun()))
        if len(together) % 10 == 0 and begun():
            # Its sources are there, and it is done at once.
            begun()[0].lasts = begun()[0].starting = False

    for attempt in attempts:
        attempt.starting = True
    supervised(*stories, clock=Clock(move))
    assert max(together) == STARTING_MAX
    assert not any(story.attempts for story in stories)


def test_a_spark_that_is_lost_is_no_matter_of_patience() -> None:
    story = Story(Trying(end=LOST))
    with pytest.raises(Unusable, match="the JVM has gone"):
        story.until(20)
    assert story.pauses == []


def test_a_start_that_finds_no_jvm_has_lost_it() -> None:
    story = Story(OSError("refused"))
    story.flow._failing = lambda error: LOST
    with pytest.raises(Unusable):
        story.until(20)


def test_what_cannot_be_serialized_twice_in_a_row_has_spoilt_its_spark() -> None:
    story = Story(
        Trying(end=UNSERIALIZABLE), Trying(1, end=UNSERIALIZABLE), *[Trying(end=UNSERIALIZABLE)] * 2
    )
    with pytest.raises(Unusable, match="Illegal size"):
        story.until(20)
    # The first may have been a moment's, and so may the second, after a batch.
    assert story.pauses == [1.0, 1.0]
    assert len(story.attempts) == 1


def test_flows_of_a_lost_spark_are_left_whether_they_hear_it_or_not() -> None:
    class Deaf(Trying):
        def stop(self) -> None:
            super().stop()
            raise ConnectionRefusedError("nobody there")

    deaf, other = Deaf(lasts=True), Trying(lasts=True)
    stories = [Story(deaf), Story(other), Story(Trying(end=LOST))]
    with pytest.raises(Unusable):
        supervise(
            [story.flow for story in stories],
            stop=threading.Event(),
            stop_now=threading.Event(),
            stopping=lambda: None,
        )
    assert (deaf.stopped, other.stopped) == (1, 1)


def test_only_what_came_to_its_end_is_done() -> None:
    done, stopped = Story(Trying(1)), Story(Trying(lasts=True))
    done.until(1)
    stopped.until(1)
    stopped.flow.stop()
    assert (done.flow.is_over, done.flow.is_done) == (True, True)
    assert (stopped.flow.is_over, stopped.flow.is_done) == (True, False)
