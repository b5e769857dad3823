"""Lives of whole quorums from seeds, and the bugs that they must find.

QUORUM_SEEDS=5000 runs more of them; a failure says its seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from ottla.quorum.node import BrokenQuorum
from unit.quorum import planted
from unit.quorum.checkers import Broken
from unit.quorum.world import World, hear_late_words, live, rejoin

SEEDS = int(os.environ.get("QUORUM_SEEDS", "100"))
CHUNK = 50
Life = Callable[[int], World]


def first_failure(life: Life, seeds: range) -> str | None:
    """The first seed that fails and how, or None."""
    for seed in seeds:
        try:
            life(seed)
        except (Broken, BrokenQuorum) as error:
            return f"seed {seed}: {error}"
    return None


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_whatever_fails_nothing_committed_is_lost_and_all_come_together_again(first: int) -> None:
    assert first_failure(live, range(first, min(first + CHUNK, SEEDS))) is None


def test_late_words_of_former_leaders_and_voters_break_nothing() -> None:
    assert first_failure(hear_late_words, range(SEEDS // 5)) is None


def test_node_that_was_cut_off_does_not_depose_a_healthy_leader() -> None:
    assert first_failure(rejoin, range(SEEDS // 2)) is None


def test_equal_seeds_are_equal_lives() -> None:
    one, other = live(2), live(2)
    assert one.history.committed == other.history.committed
    assert one.now_ms == other.now_ms


# Within how many seeds each must be found; the first that found one was between 0 and 116.
PLANTED: list[tuple[planted.Plant, Life, int]] = [
    (planted.vote_before_its_save, live, 60),
    (planted.second_vote_in_an_epoch, live, 60),
    (planted.vote_for_a_shorter_log, live, 60),
    (planted.no_pre_vote, rejoin, 10),
    (planted.followers_that_grant_every_pre_vote, rejoin, 250),
    (planted.commit_without_an_entry_of_the_own_epoch, live, 300),
    (planted.leader_that_counts_what_it_has_not_synced, live, 300),
    (planted.fetch_of_what_is_not_synced, live, 60),
    (planted.late_answer_taken, live, 60),
    (planted.two_changes_of_voters_at_once, live, 300),
    (planted.emptied_disk_that_votes, live, 300),
    (planted.leader_that_goes_on_in_its_epoch_after_a_restart, live, 60),
    (planted.late_announcement_believed, hear_late_words, 60),
    (planted.late_end_believed, hear_late_words, 60),
    (planted.votes_of_an_earlier_election_counted, hear_late_words, 60),
]


@pytest.mark.parametrize(
    ("plant", "life", "seeds"), PLANTED, ids=lambda part: getattr(part, "__name__", "")
)
def test_planted_bug_is_found(
    plant: planted.Plant, life: Life, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_failure(life, range(seeds)) is not None
