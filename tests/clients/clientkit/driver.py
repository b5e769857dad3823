"""Drives one client program over its JSON lines (the protocol is in programs/README.md)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

CALL_TIMEOUT_S = 45
WAIT_TIMEOUT_S = float(os.environ.get("OTTLA_TEST_WAIT_S", "30"))
STDERR_TAIL_BYTES = 3000
UNKNOWN_TOPIC_OR_PARTITION = 3


class Refused(Exception):
    """The client reported an error; `code` is Kafka's error code when the broker sent one."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(f"error code {code}: {message}")
        self.code = code


class Stuck(AssertionError):
    """Something did not happen in its time; the message holds what is known."""


class Consumer:
    """The events of one consumer, gathered while it runs inside the program."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self.name = name
        self.records: list[dict[str, Any]] = []
        self.assignment: list[tuple[str, int]] | None = None
        self.revocations: list[list[tuple[str, int]]] = []
        self.errors: list[str] = []

    def take(self, event: dict[str, Any]) -> None:
        pairs = [tuple(pair) for pair in event.get("partitions", [])]
        if event["event"] == "records":
            self.records.extend(event["records"])
        elif event["event"] == "assignment":
            self.assignment = sorted(pairs)
        elif event["event"] == "revoked":
            self.revocations.append(sorted(pairs))
        elif event["event"] == "error":
            self.errors.append(event["message"])

    @property
    def values(self) -> list[str | None]:
        return [record["value"] for record in self.records]

    def wait_records(self, count: int) -> list[dict[str, Any]]:
        self._driver.wait(lambda: len(self.records) >= count, lambda: f"{count} records, {self}")
        return list(self.records)

    def wait_values(self, values: Sequence[str | None]) -> None:
        """Waits until as many records came, then checks that they are these, in any order."""
        self.wait_records(len(values))
        assert sorted(self.values, key=str) == sorted(values, key=str)

    def wait_assignment(self, *partitions: tuple[str, int]) -> None:
        wanted = sorted(partitions)
        self._driver.wait(lambda: self.assignment == wanted, lambda: f"{wanted}, {self}")

    def wait_some_assignment(self) -> None:
        self._driver.wait(lambda: bool(self.assignment), lambda: f"any assignment, {self}")

    def forget_records(self) -> None:
        self.records.clear()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._driver.call(
            "seek", consumer=self.name, topic=topic, partition=partition, offset=offset
        )

    def commit(self) -> None:
        self._driver.call("commit", consumer=self.name)

    def close(self) -> None:
        self._driver.close_consumer(self.name)

    def __str__(self) -> str:
        return (
            f"{self._driver.name} consumer {self.name}: {len(self.records)} records,"
            f" assignment {self.assignment}, errors {self.errors[-3:]}"
        )


def wait_shared(consumers: Sequence[Consumer], partitions: Sequence[tuple[str, int]]) -> None:
    """Waits until every consumer has a part and the parts are exactly these partitions."""

    def is_shared() -> bool:
        parts = [consumer.assignment or [] for consumer in consumers]
        return all(parts) and sorted(itertools.chain(*parts)) == sorted(partitions)

    consumers[0]._driver.wait(
        is_shared, lambda: "a shared assignment: " + "; ".join(map(str, consumers))
    )


class Driver:
    """A running client program. Calls answer or raise; consumers gather events beside them."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        bootstrap: str,
        stderr: Path,
        changed: threading.Condition,
    ) -> None:
        """`changed` is shared by all drivers, so that one wait can look at several of them."""
        self.name = name
        self.bootstrap = bootstrap
        self._command = [*command, bootstrap]
        self._stderr_path = stderr
        self._numbers = itertools.count(1)
        self._changed = changed
        self._answers: dict[int, dict[str, Any]] = {}
        self._consumers: dict[str, Consumer] = {}
        self._has_ended = False

    def start(self) -> Driver:
        with self._stderr_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def stop(self) -> None:
        """Ends the program the hard way, as a crash of the client would: nothing is closed."""
        self._process.kill()
        self._process.wait(10)
        self._reader.join(10)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._consumers.clear()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def call(self, op: str, **arguments: Any) -> Any:
        number = next(self._numbers)
        given = {name: value for name, value in arguments.items() if value is not None}
        line = json.dumps({"id": number, "op": op, **given})
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Stuck(f"{self.name} has ended: {self._stderr_tail()}") from None
        self.wait(lambda: number in self._answers, lambda: f"answer to {op}", CALL_TIMEOUT_S)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["message"])
        return answer["ok"]

    def call_until(self, accept: Callable[[Any], bool], op: str, **arguments: Any) -> Any:
        """Asks until the answer is acceptable: what an admin changed may show a moment later."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        answer: Any = None
        while time.monotonic() < deadline:
            try:
                answer = self.call(op, **arguments)
            except Refused as error:
                if error.code != UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                answer = error
            else:
                if accept(answer):
                    return answer
            time.sleep(0.02)
        raise Stuck(f"{self.name}: {op} {arguments} still answers {answer}")

    def create_topic(
        self, topic: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic and waits until metadata shows it, as a person's script would."""
        self.call("create_topic", topic=topic, partitions=partitions, configs=configs)
        self.call_until(lambda count: count == partitions, "partitions", topic=topic)

    def delete_topic(self, topic: str) -> None:
        self.call("delete_topic", topic=topic)
        self.call_until(lambda topics: topic not in topics, "list_topics")

    def produce(self, topic: str, values: Sequence[str | None], **arguments: Any) -> Any:
        """Sends plain values to one partition or as the arguments say, and insists on success."""
        partition = arguments.pop("partition", None)
        place = {} if partition is None else {"partition": partition}
        records = [{"value": value, **place} for value in values]
        results = self.call("produce", topic=topic, records=records, **arguments)
        assert len(results) == len(values)
        assert [r for r in results if "error" in r] == []
        return results

    def consume(self, **arguments: Any) -> Consumer:
        """Starts a consumer: `group=` and `topics=`, or `partitions=[[topic, p, offset]]`."""
        name = f"c{next(self._numbers)}"
        consumer = Consumer(self, name)
        with self._changed:
            self._consumers[name] = consumer
        self.call("consume", consumer=name, **arguments)
        return consumer

    def close_consumer(self, name: str) -> None:
        with self._changed:
            known = self._consumers.pop(name, None)
        if known is not None:
            self.call("close", consumer=name)

    def close_consumers(self) -> None:
        for name in list(self._consumers):
            self.close_consumer(name)

    def wait(
        self,
        condition: Callable[[], bool],
        what: Callable[[], str],
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._has_ended:
                    state = "ended" if self._has_ended else "still runs"
                    raise Stuck(
                        f"{self.name} waited for {what()}; the program {state};"
                        f" its stderr: {self._stderr_tail()}"
                    )
                self._changed.wait(left_s)

    def _read(self) -> None:
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                if "id" in message:
                    self._answers[message["id"]] = message
                elif message["consumer"] in self._consumers:
                    self._consumers[message["consumer"]].take(message)
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _stderr_tail(self) -> str:
        return self._stderr_path.read_bytes()[-STDERR_TAIL_BYTES:].decode(errors="replace")
