"""Sends a message every few milliseconds with librdkafka as it comes, until its input ends.

`steady.py BOOTSTRAP TOPIC PARTITIONS`; one line for each report: `ack NUMBER PARTITION OFFSET`, or
`failed NUMBER REASON`, and in the end `sent COUNT`. Steady.java does the same with Kafka's client.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

EVERY_S: Final = 0.005
FLUSH_S: Final = 400.0


def report(error: KafkaError | None, message: Message) -> None:
    number = message.value().decode()
    if error is None:
        # A repetition that the broker knows to be one is acknowledged without its place.
        offset = -1 if message.offset() is None else message.offset()
        print("ack", number, message.partition(), offset, flush=True)
    else:
        print("failed", number, error, flush=True)


def main() -> None:
    bootstrap, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    has_ended = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        has_ended.set()

    threading.Thread(target=await_end, daemon=True).start()
    number = 0
    while not has_ended.is_set():
        value = str(number).encode()
        producer.produce(topic, value, partition=number % partitions, on_delivery=report)
        number += 1
        producer.poll(EVERY_S)
    producer.flush(FLUSH_S)
    print("sent", number, flush=True)


main()
