"""Power cuts of a whole broker, by seed: nothing is lost that was answered, nothing comes back.

SIM_ROUNDS says how many plain cuts there are, and beside them one in five of each other kind of
life; SIM_SEED says which life is the first. A failure prints its seed.
Threads take turns as they like, so a seed repeats the plan of a life and not its every step: where
it passes the second time, give it more rounds.
"""

from __future__ import annotations

import os

import pytest

from sim.life import CUTS_PER_LIFE
from sim.troubles import LIVES

CUTS = int(os.environ.get("SIM_ROUNDS", "100"))
FIRST_SEED = int(os.environ.get("SIM_SEED", "1"))
LIVES_PER_TEST = 4
# Of so many lives with plain cuts, one of each other kind.
OTHERS_EVERY = 5


def first_seeds(kind: str) -> list[tuple[str, int, int]]:
    """(kind, first seed, how many lives) of each test."""
    count = -(-CUTS // CUTS_PER_LIFE)
    if kind != "cut":
        count = -(-count // OTHERS_EVERY)
    return [
        (kind, FIRST_SEED + first, min(LIVES_PER_TEST, count - first))
        for first in range(0, count, LIVES_PER_TEST)
    ]


PLAN = [each for kind in LIVES for each in first_seeds(kind)]


@pytest.mark.parametrize(("kind", "first", "count"), PLAN, ids=[f"{k}-{f}" for k, f, _ in PLAN])
def test_what_was_answered_survives(kind: str, first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            LIVES[kind](seed).live()
        except BaseException as error:
            again = (
                f"SIM_SEED={seed} SIM_ROUNDS={CUTS_PER_LIFE} pytest tests/sim -k '{kind}-{seed}'"
            )
            error.add_note(f"again: {again}")
            raise
