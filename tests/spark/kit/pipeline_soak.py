"""How long tests of endurance take: little in `make test`, as long as one likes in `make soak`."""

from __future__ import annotations

import json
import os
from pathlib import Path


def seed() -> int:
    return int(os.environ.get("SOAK_SEED", "1"))


def kills(usual: int) -> int:
    """How often something is killed."""
    return int(os.environ.get("SOAK_KILLS", usual))


def seconds(usual: float) -> float:
    """How long something runs while rows keep coming."""
    return float(os.environ.get("SOAK_MINUTES", usual / 60)) * 60


def progress(what: str, kill: int, kills: int) -> None:
    print(f"seed {seed()}: {what} killed, {kill} of {kills}", flush=True)


def told(test: str, **figures: int) -> None:
    """What has been survived, for the table at the end of `make soak`."""
    line = {"seed": seed(), "test": test, **figures}
    print(*(f"{name} {value}" for name, value in line.items()), sep=", ", flush=True)
    if "SOAK_FIGURES" in os.environ:
        with Path(os.environ["SOAK_FIGURES"]).open("a") as file:
            file.write(json.dumps(line) + "\n")
