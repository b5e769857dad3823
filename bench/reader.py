"""A consumer in a process of its own: prints each message's age at its receipt, in milliseconds."""

from __future__ import annotations

import json
import sys
import time

from bench.librdkafka import Consumer

TIMEOUT_S = 30.0


def main(bootstrap: str, topic: str, count: int) -> None:
    ages_ms: list[float] = []
    with Consumer(bootstrap, {"fetch.wait.max.ms": 500}) as consumer:
        consumer.start(topic)
        while len(ages_ms) < count:
            payload = consumer.next_payload(TIMEOUT_S)
            now_ns = time.monotonic_ns()
            if payload is None:
                break
            ages_ms.append((now_ns - int.from_bytes(payload[:8], "little")) / 1e6)
    print(json.dumps(ages_ms))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
