"""A consumer in a process of its own that notes each message's age at its receipt.

It says `ready` at the first message, which is a probe, and then prints the ages of the rest.
"""

from __future__ import annotations

import json
import sys
import time

from bench.librdkafka import Consumer

TIMEOUT_S = 30.0
READY = "ready"


def main(bootstrap: str, topic: str, count: int) -> None:
    ages_ms: list[float] = []
    with Consumer(bootstrap, {"fetch.wait.max.ms": 500}) as consumer:
        consumer.start(topic)
        consumer.next_payload(TIMEOUT_S)
        print(READY, flush=True)
        while len(ages_ms) < count:
            payload = consumer.next_payload(TIMEOUT_S)
            now_ns = time.monotonic_ns()
            if payload is None:
                break
            ages_ms.append((now_ns - int.from_bytes(payload[:8], "little")) / 1e6)
    print(json.dumps(ages_ms))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
