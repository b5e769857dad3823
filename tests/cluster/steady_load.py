"""Unmodified clients that send steadily while a cluster is in trouble, and what they were told.

Each load is a process of its own with an idempotent producer and its client's own defaults. What it
was told is held against what is in the topic: nothing acknowledged is lost, nothing is there twice,
all is in order.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from scenarios.polling import until

PARTITIONS = 6
ENOUGH = 5
PATIENCE_S = 120.0
READ_S = 60.0
PROGRAMS = Path(__file__).parent / "programs"
CLIENTS = ("librdkafka", "java")


def command_of(client: str) -> list[str]:
    if client == "librdkafka":
        return [sys.executable, str(PROGRAMS / "steady.py")]
    from clientkit.toolchains import JAVA, build_java, require

    require(JAVA)
    return [*build_java()[:-1], "Steady"]


class SteadyLoad:
    """Sends to a topic of its own from `with` on until `finish`."""

    def __init__(self, client: str, bootstrap: str, partitions: int = PARTITIONS) -> None:
        self.topic = f"load-of-{client}"
        self._client = client
        self._bootstrap = bootstrap
        self._partitions = partitions
        # By number: where it was stored, and when that was told.
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self._told_s: dict[int, list[float]] = defaultdict(list)
        self.failed: list[str] = []
        self.sent: int | None = None

    def __enter__(self) -> Self:
        arguments = [self._bootstrap, self.topic, str(self._partitions)]
        self._process = subprocess.Popen(
            [*command_of(self._client), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, number, *rest = line.split(maxsplit=3)
            if what == "ack":
                partition, offset = int(rest[0]), int(rest[1])
                self.acknowledged[int(number)] = (partition, offset)
                self._told_s[partition].append(time.monotonic())
            elif what == "failed":
                self.failed.append(line)
            elif what == "sent":
                self.sent = int(number)

    def flows_everywhere(self, since_s: float) -> bool:
        """Whether each partition has acknowledged a few messages after that."""
        return all(
            sum(told_s > since_s for told_s in self._told_s[partition][-ENOUGH:]) >= ENOUGH
            for partition in range(self._partitions)
        )

    def await_flow(self, patience_s: float = PATIENCE_S) -> None:
        """Until all partitions acknowledge, from now on."""
        now_s = time.monotonic()
        until(
            lambda: self.flows_everywhere(now_s) or self.failed,
            f"{self._client}: not every partition acknowledges",
            patience_s,
        )
        assert not self.failed, self.failed[:3]

    @property
    def longest_pause_s(self) -> float:
        """Between two acknowledgements of one partition."""
        return max(
            second - first
            for told_s in self._told_s.values()
            for first, second in itertools.pairwise(told_s)
        )

    def finish(self) -> None:
        """Returns when all that was sent is answered."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        until(lambda: self._process.poll() is not None, f"{self._client} does not end", PATIENCE_S)
        self._reader.join()
        assert not self.failed, self.failed[:3]
        assert self.sent == len(self.acknowledged), "not all was answered"

    def check(self) -> None:
        found = self._everything()
        places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for place, number in found.items():
            places[number].append(place)
        doubles = {number: at for number, at in places.items() if len(at) > 1}
        for number, (partition, offset) in self.acknowledged.items():
            stored = places[number]
            is_there = any(at == partition and offset in (-1, where) for at, where in stored)
            assert is_there, f"{number} was acknowledged at {partition}, {offset}: {stored}"
        assert not doubles, f"{self._client}: messages of an idempotent producer twice: {doubles}"
        for partition in range(self._partitions):
            in_order = [found[at] for at in sorted(found) if at[0] == partition]
            assert in_order == sorted(in_order), f"{self.topic}-{partition} is out of order"

    def _everything(self) -> dict[tuple[int, int], int]:
        """By partition and offset, up to the high watermarks."""
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "reader", "log_level": 0}
        consumer = Consumer(settings)
        found: dict[tuple[int, int], int] = {}
        for partition in range(self._partitions):
            place = TopicPartition(self.topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=READ_S)
            consumer.assign([place])
            position = 0
            while position < end:
                message = consumer.poll(READ_S)
                assert message is not None, f"{self.topic}-{partition} does not give {position}"
                assert message.error() is None, message.error()
                found[partition, message.offset()] = int(message.value())
                position = message.offset() + 1
        consumer.close()
        return found

    def figures(self) -> str:
        return (
            f"{self._client}: {len(self.acknowledged)} acknowledged, 0 lost, "
            f"longest pause {self.longest_pause_s:.1f} s"
        )


def all_flow(loads: Sequence[SteadyLoad]) -> None:
    for load in loads:
        load.await_flow()


def finish_all(loads: Sequence[SteadyLoad]) -> None:
    """Ends the loads, and checks what they were told."""
    for load in loads:
        load.finish()
    for load in loads:
        load.check()
        print(load.figures())
