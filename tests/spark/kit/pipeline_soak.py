"""How long tests of endurance take: little in `make test`, as long as one likes in `make soak`."""

from __future__ import annotations

import os


def seed() -> int:
    return int(os.environ.get("SOAK_SEED", "1"))


def kills(usual: int) -> int:
    """How often something is killed."""
    return int(os.environ.get("SOAK_KILLS", usual))


def seconds(usual: float) -> float:
    """How long something runs while rows keep coming."""
    return float(os.environ.get("SOAK_MINUTES", usual / 60)) * 60
