"""How long a start takes after a kill: `python -m bench.recovery`.

A topic with many partitions, each with some messages in it, is stopped cleanly and started again.
Then a few of the partitions are written to, and the broker is killed in the middle of that. What
is measured is the time from the new process to its readiness, as a supervisor would see it, after
the clean stop and after the kill; both with files that are in memory, as after the death of a
process. `--drop-caches` (as root) measures what a machine sees that has started anew.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench import procfs
from bench.nodes import data_root
from ottla.testing import Broker

TOPIC: Final = "recovered"
MESSAGE_BYTES: Final = 1000
CHUNK: Final = 20_000


def fill(broker: Broker, partitions: int, byte_count: int) -> None:
    """So many bytes into each of the first partitions."""
    value = bytes(MESSAGE_BYTES)
    with_linger = {"linger.ms": 5, "batch.size": 65_536, "queue.buffering.max.messages": 200_000}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", **with_linger})
    waiting = 0
    for _ in range(max(1, byte_count // MESSAGE_BYTES)):
        for partition in range(partitions):
            producer.produce(TOPIC, value, partition=partition)
            waiting += 1
            if waiting == CHUNK:
                producer.flush()
                waiting = 0
    producer.flush()


def timed_start(broker: Broker, *, drop_caches: bool) -> tuple[float, float]:
    """(seconds until it is ready, seconds of CPU that took)."""
    if drop_caches:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    started = time.perf_counter()
    broker.start()
    return time.perf_counter() - started, procfs.cpu_seconds(broker.pid)


def measure(args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    figures = {}
    settings = {"log.scrub.bytes.per.second": 0}
    with (
        tempfile.TemporaryDirectory(prefix="recovery-", dir=data_root()) as home,
        Broker(settings, data_dir=Path(home) / "data") as broker,
    ):
        broker.create_topic(TOPIC, args.partitions)
        fill(broker, args.partitions, args.idle_kilobytes * 1000)
        broker.stop()
        figures["after a clean stop"] = timed_start(broker, drop_caches=args.drop_caches)
        fill(broker, args.busy, args.megabytes * 1_000_000 // args.busy)
        broker.kill()
        figures["after a kill"] = timed_start(broker, drop_caches=args.drop_caches)
        broker.kill()
        figures["after another kill"] = timed_start(broker, drop_caches=args.drop_caches)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=10, help="partitions written to at the end")
    parser.add_argument("--megabytes", type=int, default=500, help="written to those, in all")
    parser.add_argument("--idle-kilobytes", type=int, default=20, help="in every partition before")
    parser.add_argument("--drop-caches", action="store_true")
    for name, (seconds, cpu_seconds) in measure(parser.parse_args()).items():
        print(f"{name:20} ready in {seconds:5.2f} s, CPU {cpu_seconds:5.2f} s")


if __name__ == "__main__":
    main()
