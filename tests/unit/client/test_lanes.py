"""The order of one partition's batches, whatever happens to the requests that carry them."""

from __future__ import annotations

from random import Random

import pytest

from ottla.client.lanes import WINDOW_BATCHES, Identity, Lane, Parcel, SequenceLost, Verdict
from ottla.client.lanes import verdict_of as verdict_of_code
from ottla.errors import ErrorCode, OutOfOrderSequence
from ottla.log.producer_state import ProducerState
from ottla.types import TopicPartition
from ottla.wire.records import SEQUENCE_MAX, BatchHeader

PARTITION = TopicPartition("orders", 3)
ANNA, BERTA = Identity(1, 0), Identity(2, 0)
DONE, AGAIN, DOUBT, LOST = (
    Verdict.DONE,
    Verdict.AGAIN,
    Verdict.AGAIN_IN_DOUBT,
    Verdict.COUNT_LOST,
)


def lane_with(*counts: int, is_idempotent: bool = True) -> Lane:
    lane = Lane(PARTITION, is_idempotent=is_idempotent)
    for count in counts:
        lane.add(Parcel(bytearray(), count))
    if is_idempotent:
        lane.begin(ANNA)
    return lane


def take(lane: Lane) -> Parcel:
    parcel = lane.next()
    assert parcel is not None
    return parcel


def take_all(lane: Lane) -> list[Parcel]:
    parcels = []
    while (parcel := lane.next()) is not None:
        parcels.append(parcel)
    return parcels


def warm_lane(*counts: int) -> Lane:
    """A lane of which the leader has taken a first batch of one record."""
    lane = lane_with(1, *counts)
    lane.judge(take(lane), DONE)
    return lane


def test_sequences_count_records() -> None:
    lane = warm_lane(10, 5, 1)
    assert [parcel.sequence for parcel in take_all(lane)] == [1, 11, 16]


def test_sequences_begin_again_after_the_highest() -> None:
    lane = lane_with(SEQUENCE_MAX - 1, 5, 2)
    lane.judge(take(lane), DONE)
    assert [parcel.sequence for parcel in take_all(lane)] == [SEQUENCE_MAX - 1, 3]


def test_first_batch_under_an_identity_travels_alone() -> None:
    lane = lane_with(1, 1, 1)
    first = take(lane)
    assert lane.next() is None
    lane.judge(first, DONE)
    assert len(take_all(lane)) == 2


def test_no_more_batches_are_unanswered_than_a_leader_remembers() -> None:
    lane = warm_lane(*[1] * 9)
    parcels = take_all(lane)
    assert len(parcels) == WINDOW_BATCHES
    lane.judge(parcels[0], DONE)
    assert len(take_all(lane)) == 1


def test_without_sequences_a_batch_always_travels_alone() -> None:
    lane = lane_with(1, 1, 1, is_idempotent=False)
    for _ in range(3):
        assert not lane.wants_identity
        parcel = take(lane)
        assert parcel.sequence == -1
        assert lane.next() is None
        lane.judge(parcel, DONE)
    assert len(lane) == 0


def test_nothing_is_sent_while_a_failed_batch_waits_for_the_others() -> None:
    lane = warm_lane(1, 1, 1, 1)
    first, second, third = take(lane), take(lane), take(lane)
    lane.judge(first, AGAIN)
    assert lane.next() is None
    lane.judge(second, LOST)
    assert lane.next() is None
    lane.judge(third, LOST)
    assert lane.next() is first


def test_what_failed_goes_again_in_order_one_by_one_with_the_same_sequences() -> None:
    lane = warm_lane(4, 3, 2, 1)
    sent = take_all(lane)
    for parcel in reversed(sent):
        lane.judge(parcel, DOUBT)
    for expected, sequence in zip(sent, (1, 5, 8, 10), strict=True):
        parcel = take(lane)
        assert parcel is expected
        assert parcel.sequence == sequence
        assert lane.next() is None
        lane.judge(parcel, DONE)
    assert len(lane) == 0
    lane.add(Parcel(bytearray(), 1))
    lane.add(Parcel(bytearray(), 1))
    assert [parcel.sequence for parcel in take_all(lane)] == [11, 12]


def test_batches_added_meanwhile_come_after_those_that_failed() -> None:
    lane = warm_lane(1, 1)
    first, second = take_all(lane)
    late = Parcel(bytearray(), 1)
    lane.add(late)
    lane.judge(second, DOUBT)
    lane.judge(first, DOUBT)
    assert take(lane) is first
    lane.judge(first, DONE)
    assert take(lane) is second
    lane.judge(second, DONE)
    assert take(lane) is late


def test_lost_count_after_a_failed_batch_is_only_its_consequence() -> None:
    lane = warm_lane(1, 1)
    first, second = take_all(lane)
    lane.judge(first, DOUBT)
    lane.judge(second, LOST)
    assert lane.identity == ANNA
    lane.judge(take(lane), DONE)
    assert take(lane).sequence == 2


def test_leader_that_lost_count_gets_a_new_identity_and_sequences_from_0() -> None:
    lane = warm_lane(4, 3, 2)
    first, second = take(lane), take(lane)
    lane.judge(first, LOST)
    lane.judge(second, LOST)
    assert lane.wants_identity
    assert lane.refused_identity == ANNA
    assert lane.next() is None
    lane.begin(BERTA)
    assert take(lane) is first
    assert first.sequence == 0
    assert lane.next() is None, "it is the first under its identity"
    lane.judge(first, DONE)
    assert take(lane) is second
    lane.judge(second, DONE)
    assert (second.sequence, take(lane).sequence) == (4, 7)


@pytest.mark.parametrize("doubtful", [0, 1])
def test_batches_in_doubt_are_not_counted_anew(doubtful: int) -> None:
    lane = warm_lane(1, 1)
    sent = take_all(lane)
    for at, parcel in enumerate(sent):
        lane.judge(parcel, DOUBT if at == doubtful else AGAIN)
    with pytest.raises(SequenceLost, match=r"orders-3: .* producer 1 .* could double them"):
        lane.judge(take(lane), LOST)


def test_doubt_ends_with_the_acknowledgement() -> None:
    lane = warm_lane(1, 1)
    first, second = take_all(lane)
    lane.judge(first, DOUBT)
    lane.judge(second, LOST)
    lane.judge(take(lane), DONE)
    lane.judge(take(lane), LOST)
    assert lane.wants_identity


def test_batch_is_not_sent_after_one_that_should_have_followed_it() -> None:
    lane = warm_lane(1, 1, 1)
    first, second, third = take_all(lane)
    lane.judge(third, DONE)
    lane.judge(first, DONE)
    with pytest.raises(SequenceLost, match="change the order"):
        lane.judge(second, LOST)


def test_oldest_is_the_first_unanswered_wherever_it_is() -> None:
    lane = warm_lane(1, 1, 1)
    first, second = take(lane), take(lane)
    assert lane.oldest is first
    lane.judge(first, DOUBT)
    assert lane.oldest is first
    lane.judge(second, DOUBT)
    assert lane.oldest is first
    for _ in range(3):
        lane.judge(take(lane), DONE)
    assert lane.oldest is None


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NONE, DONE),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, DONE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, AGAIN),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, AGAIN),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, DOUBT),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, DOUBT),
        (ErrorCode.REQUEST_TIMED_OUT, DOUBT),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, LOST),
        (ErrorCode.UNKNOWN_PRODUCER_ID, LOST),
        (ErrorCode.INVALID_PRODUCER_EPOCH, LOST),
        (ErrorCode.MESSAGE_TOO_LARGE, Verdict.FAILED),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Verdict.FAILED),
        (4711, Verdict.FAILED),
    ],
)
def test_codes_and_what_they_mean(code: int, verdict: Verdict) -> None:
    assert verdict_of_code(code) is verdict


TOO_LARGE = 2**29


def parcel_of(first: int, count: int, sequence: int = -1) -> Parcel:
    """Records are numbered through; a batch knows its first."""
    return Parcel(bytearray(first.to_bytes(8)), count, sequence=sequence)


def halves(parcel: Parcel) -> list[Parcel]:
    first, half = int.from_bytes(parcel.data), parcel.count // 2
    after = (parcel.sequence + half) & SEQUENCE_MAX
    return [
        parcel_of(first, half, parcel.sequence),
        parcel_of(first + half, parcel.count - half, after),
    ]


class Leader:
    """A leader's log as far as producers go; the rules are the broker's own."""

    def __init__(self) -> None:
        self.producers = ProducerState()
        self.log: list[tuple[int, int]] = []

    def append(self, lane: Lane, parcel: Parcel) -> Verdict | None:
        """None when the batch is too large, which is found before its sequence is looked at."""
        if parcel.count > TOO_LARGE:
            return None
        assert lane.identity is not None
        header = BatchHeader(
            *(0, 0, 0, 2, 0, 0, parcel.count - 1, 0, 0),
            *lane.identity,
            parcel.sequence,
            parcel.count,
        )
        try:
            if self.producers.check(header) is None:
                self.producers.add(header, len(self.log), now_ms=0)
                self.log.append((int.from_bytes(parcel.data), parcel.count))
        except OutOfOrderSequence:
            return LOST
        return DONE


class Story:
    """A lane, a leader, and a connection on which everything may happen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lane = Lane(PARTITION, is_idempotent=True)
        self.leader = Leader()
        self.requests: list[Parcel] = []  # sent and not arrived, in order
        self.answers: list[tuple[Parcel, Verdict | None]] = []
        self.identities = 0
        self.added = 0
        self.acknowledged: list[tuple[int, int]] = []

    def step(self, *, is_calm: bool) -> None:
        kinds = [self.send, self.send, self.arrive, self.arrive, self.answer, self.answer]
        if not is_calm:
            kinds += [self.refuse, self.cut, self.add, self.add]
        self.random.choice(kinds)()

    def add(self) -> None:
        count = self.random.randint(1, 2**30)
        self.lane.add(parcel_of(self.added, count))
        self.added += count

    def send(self) -> None:
        if self.lane.wants_identity:
            self.identities += 1
            self.lane.begin(Identity(self.identities, 0))
        parcel = self.lane.next()
        if parcel is not None:
            self.requests.append(parcel)

    def arrive(self) -> None:
        if self.requests:
            parcel = self.requests.pop(0)
            self.answers.append((parcel, self.leader.append(self.lane, parcel)))

    def refuse(self) -> None:
        """The leader is short of something and answers so, before or after the append."""
        if self.requests:
            parcel = self.requests.pop(0)
            if self.random.random() < 0.5 and self.leader.append(self.lane, parcel) is DONE:
                self.answers.append((parcel, DOUBT))
            else:
                self.answers.append((parcel, AGAIN))

    def answer(self) -> None:
        if self.answers:
            parcel, verdict = self.answers.pop(0)
            self.judge(parcel, verdict)

    def cut(self) -> None:
        """The connection goes; some of what was sent still arrives, the answers never do."""
        arriving = self.random.randint(0, len(self.requests))
        unanswered = [parcel for parcel, _ in self.answers] + self.requests
        for parcel in self.requests[:arriving]:
            self.leader.append(self.lane, parcel)
        self.requests, self.answers = [], []
        self.random.shuffle(unanswered)
        for parcel in unanswered:
            self.judge(parcel, DOUBT)

    def judge(self, parcel: Parcel, verdict: Verdict | None) -> None:
        if verdict is None:
            self.lane.divide(parcel, halves(parcel))
            return
        if verdict is DONE:
            self.acknowledged.append((int.from_bytes(parcel.data), parcel.count))
        self.lane.judge(parcel, verdict)

    def check(self) -> None:
        """No record is missing, doubled or before its time."""
        end = 0
        for first, count in self.leader.log:
            assert first == end
            end += count


@pytest.mark.parametrize("seed", range(300))
def test_leader_has_every_batch_once_and_in_order_whatever_happens(seed: int) -> None:
    """Every other batch is too large and goes in two."""
    story = Story(seed)
    for _ in range(200):
        story.step(is_calm=False)
        story.check()
        assert len(story.requests) + len(story.answers) <= WINDOW_BATCHES
    for _ in range(20_000):
        if not len(story.lane):
            break
        story.step(is_calm=True)
    story.check()
    assert sum(count for _, count in story.leader.log) == story.added
    assert sorted(story.acknowledged) == story.leader.log
    assert story.identities <= 1


def test_batch_that_is_too_large_goes_in_pieces_before_those_after_it() -> None:
    lane = warm_lane(10, 5, 1)
    large, after, last = take_all(lane)
    lane.divide(large, [Parcel(bytearray(), 4, sequence=1), Parcel(bytearray(), 6, sequence=5)])
    assert lane.next() is None, "what is under way comes first"
    lane.judge(last, LOST)
    lane.judge(after, LOST)
    sent = []
    while (parcel := lane.next()) is not None:
        sent.append((parcel.sequence, parcel.count))
        lane.judge(parcel, DONE)
    assert sent == [(1, 4), (5, 6), (11, 5), (16, 1)]


def test_pieces_of_a_batch_that_may_be_in_the_log_are_in_doubt_as_well() -> None:
    lane = warm_lane(10)
    lane.judge(take(lane), DOUBT)
    large = take(lane)
    lane.divide(large, [Parcel(bytearray(), 4, sequence=1), Parcel(bytearray(), 6, sequence=5)])
    with pytest.raises(SequenceLost, match="may be in the log already"):
        lane.judge(take(lane), LOST)
