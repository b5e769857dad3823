"""Lives by name, also such as only scripts/mutants.py asks for."""

from __future__ import annotations

from sim.test_full_disk import start_on_a_full_disk
from sim.troubles import LIVES, FailedSyncs


class Unseen(FailedSyncs):
    """Failed syncs, without a look at what a follower might have had."""

    looks_at_batches = False


def live(kind: str, seed: int) -> None:
    if kind == "stop on a full disk":
        start_on_a_full_disk(seed)
    elif kind == "failed-syncs-unseen":
        Unseen(seed).live()
    else:
        LIVES[kind](seed).live()
