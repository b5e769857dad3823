"""Orders of a few shops for the topic `orders`: some late, some too late, some broken.

    python generate.py                        # 10,000 orders as fast as they go
    python generate.py --rate 200 --endless   # 200 a second until Ctrl-C

The same seed makes the same orders, byte for byte. Order times are the generator's own: they begin
at START and advance by a minute for every `--per-minute` orders, however fast those are sent.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from confluent_kafka import Producer

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
SHOPS = ("Brno", "Liberec", "Olomouc", "Ostrava", "Praha", "Zlín")
# The pipeline waits two minutes (its watermark), so these are all in time.
LATE_S_MAX = 60
# And these are not: they belong to the hour before START.
TOO_LATE_S = 3600
TICKS_PER_SECOND = 4
FLUSH_TIMEOUT_S = 30.0

Kind = Literal["on time", "late", "too late", "broken"]


class Order(NamedTuple):
    key: bytes
    value: bytes
    kind: Kind


class Odds(NamedTuple):
    """How many of a hundred orders are not as they should be."""

    late: float = 5.0
    too_late: float = 0.2
    broken: float = 0.5


USUAL = Odds()


def orders(seed: int, *, per_minute: int = 2000, odds: Odds = USUAL) -> Iterator[Order]:
    """An endless stream of orders, in the order in which they are to be sent."""
    dice = random.Random(seed)
    for number in itertools.count():
        now = START + timedelta(minutes=number / per_minute)
        kind = _kind(dice.uniform(0, 100), odds)
        if kind == "late":
            at = now - timedelta(seconds=dice.uniform(1, LATE_S_MAX))
        elif kind == "too late":
            at = now - timedelta(seconds=TOO_LATE_S)
        else:
            at = now
        shop = dice.choice(SHOPS)
        order = {
            "id": f"o-{number}",
            "shop": shop,
            "amount": round(dice.uniform(1, 200), 2),
            "at": at.isoformat(timespec="milliseconds"),
        }
        text = json.dumps(order, ensure_ascii=False)
        if kind == "broken":
            text = _broken(text, dice)
        yield Order(shop.encode(), text.encode(), kind)


def _kind(roll: float, odds: Odds) -> Kind:
    kinds: tuple[tuple[Kind, float], ...] = (
        ("late", odds.late),
        ("too late", odds.too_late),
        ("broken", odds.broken),
    )
    for kind, share in kinds:
        if roll < share:
            return kind
        roll -= share
    return "on time"


def _broken(text: str, dice: random.Random) -> str:
    """Cut off in the middle, or with an amount that is no number."""
    if dice.random() < 0.5:
        return text[: len(text) // 2]
    return text.replace('"amount": ', '"amount": "about ').replace(', "at"', '", "at"')


class Sender:
    """Sends in ticks and waits for each tick's acknowledgements.

    So no partition gets ahead of another by more than a tick, and an order is late by its own
    time only and never because of the way it took.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._topic = topic

    def send(self, tick: list[Order]) -> None:
        for order in tick:
            self._producer.produce(self._topic, order.value, order.key)
            self._producer.poll(0)
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        if left:
            raise SystemExit(f"{left} orders were not acknowledged within {FLUSH_TIMEOUT_S:g} s")

    def close(self) -> None:
        """Everything is acknowledged already; the connection goes with the producer."""
        del self._producer


def ticks(stream: Iterator[Order], rate: int, count: int | None) -> Iterator[list[Order]]:
    """Cut for sending: quarter seconds of `rate` orders each, `count` in all (None: no end)."""
    size = max(1, rate // TICKS_PER_SECOND) if rate else 5000
    left = count
    while left is None or left > 0:
        tick = list(itertools.islice(stream, size if left is None else min(size, left)))
        yield tick
        if left is not None:
            left -= len(tick)


def main() -> None:
    arguments = _arguments()
    sender = Sender(arguments.bootstrap, arguments.topic)
    stream = orders(arguments.seed, per_minute=arguments.per_minute)
    sent, due = 0, time.monotonic()
    try:
        for tick in ticks(stream, arguments.rate, None if arguments.endless else arguments.orders):
            sender.send(tick)
            sent += len(tick)
            print(f"\r{sent:,} orders", end="", flush=True)
            if arguments.rate:
                due += len(tick) / arguments.rate
                time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        pass
    print(f"\r{sent:,} orders sent to {arguments.topic}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    bootstrap = os.environ.get("OTTLA_BOOTSTRAP", "127.0.0.1:9092")
    parser.add_argument("--bootstrap", default=bootstrap)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--orders", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--endless", action="store_true", help="until Ctrl-C")
    parser.add_argument("--rate", type=int, default=0, help="a second; 0 is as fast as it goes")
    parser.add_argument("--per-minute", type=int, default=2000, help="orders per minute of theirs")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
