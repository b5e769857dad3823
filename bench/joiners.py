"""Many consumers that join one group, in a process of their own.

It prints the seconds from the first subscription until every member has exactly one partition,
which only the assignment of the whole group gives, and only then leaves.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from bench.librdkafka import QUIET

TIMEOUT_S: Final = 60.0
# Members learn of a rebalance by their next heartbeat; the default of 3 s would be all one saw.
HEARTBEAT_MS: Final = 100


def main(bootstrap: str, topic: str, members: int) -> None:
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{topic}-group",
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "session.timeout.ms": 10_000,
        "enable.auto.commit": False,
        "log_level": QUIET,
    }
    consumers = [Consumer(settings) for _ in range(members)]
    try:
        started = time.perf_counter()
        for consumer in consumers:
            consumer.subscribe([topic])
        while not _is_stable(consumers):
            if time.perf_counter() - started > TIMEOUT_S:
                sys.exit(f"no stable assignment in {TIMEOUT_S:g} s")
            time.sleep(0.002)
        print(time.perf_counter() - started, flush=True)
    finally:
        with ThreadPoolExecutor(members) as pool:
            list(pool.map(Consumer.close, consumers))


def _is_stable(consumers: list[Consumer]) -> bool:
    """The topic has a partition for each member."""
    for consumer in consumers:
        message = consumer.poll(0)
        error = message.error() if message is not None else None
        if error is not None and error.code() != KafkaError._TRANSPORT:
            raise KafkaException(error)
    held = [{part.partition for part in consumer.assignment()} for consumer in consumers]
    return all(len(parts) == 1 for parts in held) and len(set().union(*held)) == len(consumers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
