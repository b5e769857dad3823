"""What the Python programs share: JSON lines in, JSON lines out (see ../README.md)."""

from __future__ import annotations

import hashlib
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

LARGE_BYTES = 1000
_out_lock = threading.Lock()


class Refused(Exception):
    """The broker answered with a Kafka error code."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code


def emit(message: dict[str, Any]) -> None:
    line = json.dumps(message)
    with _out_lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def encoded(text: str | None, pad: int = 0) -> bytes | None:
    return None if text is None else text.encode() + b"x" * pad


def value_of(record: dict[str, Any]) -> bytes | None:
    return encoded(record.get("value"), record.get("pad", 0))


def headers_of(record: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(name, encoded(value)) for name, value in record.get("headers", [])]


def seen(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> dict[str, Any]:
    record = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": None if key is None else key.decode(),
        "value": None if value is None else value[:LARGE_BYTES].decode(),
        "size": -1 if value is None else len(value),
        "headers": [[name, None if v is None else v.decode()] for name, v in headers],
    }
    if value is not None and len(value) > LARGE_BYTES:
        record["sha256"] = hashlib.sha256(value).hexdigest()
    return record


class ConsumerThread(threading.Thread):
    """Polls one consumer; everything else that touches it is run between two polls."""

    def __init__(self, name: str, adapter: Any) -> None:
        super().__init__(name=name, daemon=True)
        self._adapter = adapter
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]]
        self._calls = queue.SimpleQueue()
        self._open = True
        self._assignment: list[list[Any]] | None = None

    def call(self, function: Callable[[], Any]) -> Any:
        if not self.is_alive():
            raise RuntimeError(f"consumer {self.name} has ended")
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, answer))
        result = answer.get(timeout=60)
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        def stop() -> None:
            self._open = False
            self._adapter.close()

        self.call(stop)
        self.join(60)

    def revoked(self, partitions: Iterable[tuple[str, int]]) -> None:
        emit({"consumer": self.name, "event": "revoked", "partitions": sorted(partitions)})

    def run(self) -> None:
        while self._open:
            self._run_calls()
            if not self._open:
                return
            try:
                records = self._adapter.poll()
            except Exception as error:
                emit({"consumer": self.name, "event": "error", "message": repr(error)})
                continue
            self._report_assignment()
            if records:
                emit({"consumer": self.name, "event": "records", "records": records})

    def _run_calls(self) -> None:
        while self._open and not self._calls.empty():
            function, answer = self._calls.get()
            try:
                answer.put(function())
            except Exception as error:
                answer.put(error)

    def _report_assignment(self) -> None:
        assignment = sorted(list(pair) for pair in self._adapter.assignment())
        if assignment != self._assignment:
            self._assignment = assignment
            emit({"consumer": self.name, "event": "assignment", "partitions": assignment})


class Copying(threading.Thread):
    """Copies a topic, each message once: some at a time in a transaction, with the positions.

    A `session` is a producer and a consumer that begins at the committed positions. It copies until
    it has trouble, or aborts on purpose; then there is another one.
    """

    def __init__(self, session: Callable[[Copying], bool], abort_every: int = 0) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._abort_every = abort_every
        self.is_done = False
        self.committed = 0
        self.aborted = 0
        self.trouble: str | None = None

    @property
    def is_to_abort(self) -> bool:
        return bool(self._abort_every) and (
            (self.committed + self.aborted + 1) % self._abort_every == 0
        )

    def status(self) -> dict[str, Any]:
        return {
            "done": self.is_done,
            "committed": self.committed,
            "aborted": self.aborted,
            "trouble": self.trouble,
        }

    def run(self) -> None:
        while not self.is_done:
            try:
                self.is_done = self._session(self)
            except Exception as error:
                self.trouble = repr(error)
                time.sleep(0.1)


class Program:
    """One client: `op_*` methods answer requests; consumers run in threads of their own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.consumers: dict[str, ConsumerThread] = {}

    def code_of(self, error: Exception) -> int | None:
        raise NotImplementedError

    def open_consumer(self, thread_of: Callable[[Any], ConsumerThread], **args: Any) -> None:
        raise NotImplementedError

    def op_consume(self, consumer: str, **args: Any) -> None:
        def thread_of(adapter: Any) -> ConsumerThread:
            self.consumers[consumer] = ConsumerThread(consumer, adapter)
            return self.consumers[consumer]

        self.open_consumer(thread_of, **args)
        self.consumers[consumer].start()

    def op_seek(self, consumer: str, topic: str, partition: int, offset: int) -> None:
        thread = self.consumers[consumer]
        thread.call(lambda: thread._adapter.seek(topic, partition, offset))

    def op_commit(self, consumer: str) -> None:
        thread = self.consumers[consumer]
        thread.call(thread._adapter.commit)

    def copy_session(self, copying: Copying, **args: Any) -> bool:
        """Whether the end of the topic is reached."""
        raise NotImplementedError

    def op_copy(self, abort_every: int = 0, **args: Any) -> None:
        self.copying = Copying(lambda copying: self.copy_session(copying, **args), abort_every)
        self.copying.start()

    def op_copied(self) -> dict[str, Any]:
        return self.copying.status()

    def op_close(self, consumer: str) -> None:
        self.consumers.pop(consumer).close()


def serve(program: Program) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        number = request.pop("id")
        try:
            result = getattr(program, "op_" + request.pop("op"))(**request)
        except Exception as error:
            code = error.code if isinstance(error, Refused) else program.code_of(error)
            emit({"id": number, "error": {"code": code, "message": repr(error)}})
        else:
            emit({"id": number, "ok": result})
