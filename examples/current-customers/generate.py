"""Changes of customers for the topic `customers`: new ones, updates, and some who leave.

    python generate.py                        # 1,000 changes as fast as they go
    python generate.py --rate 50 --endless    # 50 a second until Ctrl-C

The key is the customer's id; a customer who leaves is a tombstone, a message without a value. The
same seed makes the same changes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import Producer

NAMES = ("Božena", "Felice", "Grete", "Josef", "Karl", "Leni", "Milena", "Ottla")
CITIES = ("Berlin", "Brno", "Praha", "Wien")
PLANS = ("free", "team", "company")
CUSTOMERS = 200
LEAVING_PERCENT = 8.0
FLUSH_TIMEOUT_S = 30.0


class Change(NamedTuple):
    key: bytes
    value: bytes | None


def changes(seed: int) -> Iterator[Change]:
    """An endless stream of changes; whoever has left may come back."""
    dice = random.Random(seed)
    while True:
        key = f"c-{dice.randrange(CUSTOMERS)}".encode()
        if dice.uniform(0, 100) < LEAVING_PERCENT:
            yield Change(key, None)
            continue
        customer = {
            "name": dice.choice(NAMES),
            "city": dice.choice(CITIES),
            "plan": dice.choice(PLANS),
        }
        yield Change(key, json.dumps(customer, ensure_ascii=False).encode())


def send(producer: Producer, topic: str, change: Change) -> None:
    producer.produce(topic, change.value, change.key)
    producer.poll(0)


def main() -> None:
    arguments = _arguments()
    producer = Producer({"bootstrap.servers": arguments.bootstrap, "linger.ms": 5})
    count = None if arguments.endless else arguments.changes
    sent, due = 0, time.monotonic()
    try:
        for change in itertools.islice(changes(arguments.seed), count):
            send(producer, arguments.topic, change)
            sent += 1
            if arguments.rate:
                due += 1 / arguments.rate
                time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        pass
    left = producer.flush(FLUSH_TIMEOUT_S)
    if left:
        raise SystemExit(f"{left} changes were not acknowledged within {FLUSH_TIMEOUT_S:g} s")
    print(f"{sent:,} changes sent to {arguments.topic}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    bootstrap = os.environ.get("OTTLA_BOOTSTRAP", "127.0.0.1:9092")
    parser.add_argument("--bootstrap", default=bootstrap)
    parser.add_argument("--topic", default="customers")
    parser.add_argument("--changes", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--endless", action="store_true", help="until Ctrl-C")
    parser.add_argument("--rate", type=int, default=0, help="a second; 0 is as fast as it goes")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
