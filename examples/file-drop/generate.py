"""Drops CSV files with readings of a few sensors into inbox/; some lines are broken.

    python generate.py                     # 5 files
    python generate.py --endless --every 2 # one every two seconds until Ctrl-C

The same seed makes the same files. A file is written under a hidden name and then renamed: whoever
watches the folder sees all of it or nothing.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
SENSORS = ("attic", "boiler", "cellar", "kitchen")
LINES_PER_FILE = 200
BROKEN_PERCENT = 1.0


def files(seed: int) -> Iterator[tuple[str, str]]:
    """An endless stream of names and contents."""
    dice = random.Random(seed)
    for number in itertools.count():
        first = START + timedelta(minutes=number * LINES_PER_FILE)
        lines = [_line(first + timedelta(minutes=at), dice) for at in range(LINES_PER_FILE)]
        yield f"readings-{number:05}.csv", "\n".join(["sensor,at,celsius", *lines, ""])


def _line(at: datetime, dice: random.Random) -> str:
    celsius = f"{dice.uniform(-5, 90):.2f}"
    if dice.uniform(0, 100) < BROKEN_PERCENT:
        celsius = "warm"
    return f"{dice.choice(SENSORS)},{at:%Y-%m-%dT%H:%M:%SZ},{celsius}"


def drop(inbox: Path, name: str, content: str) -> None:
    inbox.mkdir(parents=True, exist_ok=True)
    hidden = inbox / f".{name}.part"
    hidden.write_text(content)
    hidden.rename(inbox / name)


def main() -> None:
    arguments = _arguments()
    count = None if arguments.endless else arguments.files
    try:
        for name, content in itertools.islice(files(arguments.seed), count):
            drop(arguments.inbox, name, content)
            print(arguments.inbox / name, flush=True)
            time.sleep(arguments.every)
    except KeyboardInterrupt:
        pass


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    inbox = Path(__file__).parent / "inbox"
    parser.add_argument(
        "--inbox", type=Path, default=inbox, help="default: inbox/ beside this file"
    )
    parser.add_argument("--files", type=int, default=5, help="how many (default 5)")
    parser.add_argument("--endless", action="store_true", help="until Ctrl-C")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two files")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
