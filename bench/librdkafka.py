"""librdkafka as the load generator: the copy inside confluent-kafka, called through ctypes.

confluent-kafka makes a Python object of every message, which costs more than the broker spends on
it. librdkafka's own batch calls do not, so that the generator is not what is measured.
"""

from __future__ import annotations

import ctypes
import functools
import json
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_void_p,
)
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast

PRODUCER: Final = 0
CONSUMER: Final = 1
OFFSET_BEGINNING: Final = -2
CONF_OK: Final = 0
COPY_PAYLOAD: Final = 0x2
# Syslog's number for errors; librdkafka otherwise tells of every hiccup of a start or stop.
QUIET: Final = 3
ERROR_TEXT_BYTES: Final = 512
ENQUEUE_CHUNK: Final = 10_000
PIECE_MIN: Final = 100
CONSUME_CHUNK: Final = 20_000


Settings: TypeAlias = Mapping[str, str | int]


class LoadFailed(Exception):
    """The client could not do what the benchmark asked of it."""


class RdMessage(Structure):
    """`rd_kafka_message_t`."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("length", c_size_t),
        ("key", c_void_p),
        ("key_length", c_size_t),
        ("offset", c_int64),
        ("opaque", c_void_p),
    )


DeliveryCallback: Final = CFUNCTYPE(None, c_void_p, POINTER(RdMessage), c_void_p)
StatisticsCallback: Final = CFUNCTYPE(c_int, c_void_p, c_char_p, c_size_t, c_void_p)

SIGNATURES: Final[Mapping[str, tuple[Any, list[Any]]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_conf_set_dr_msg_cb": (None, [c_void_p, DeliveryCallback]),
    "rd_kafka_conf_set_stats_cb": (None, [c_void_p, StatisticsCallback]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_version_str": (c_char_p, []),
    "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "rd_kafka_topic_destroy": (None, [c_void_p]),
    "rd_kafka_poll": (c_int, [c_void_p, c_int]),
    "rd_kafka_flush": (c_int, [c_void_p, c_int]),
    "rd_kafka_produce_batch": (c_int, [c_void_p, c_int32, c_int, POINTER(RdMessage), c_int]),
    "rd_kafka_queue_new": (c_void_p, [c_void_p]),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_queue_get_consumer": (c_void_p, [c_void_p]),
    "rd_kafka_poll_set_consumer": (c_int, [c_void_p]),
    "rd_kafka_subscribe": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_consumer_close": (c_int, [c_void_p]),
    "rd_kafka_topic_partition_list_new": (c_void_p, [c_int]),
    "rd_kafka_topic_partition_list_add": (c_void_p, [c_void_p, c_char_p, c_int32]),
    "rd_kafka_topic_partition_list_destroy": (None, [c_void_p]),
    "rd_kafka_consume_start_queue": (c_int, [c_void_p, c_int32, c_int64, c_void_p]),
    "rd_kafka_consume_stop": (c_int, [c_void_p, c_int32]),
    "rd_kafka_consume_batch_queue": (
        c_ssize_t,
        [c_void_p, c_int, POINTER(c_void_p), c_size_t],
    ),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The shared library that confluent-kafka brings (or has linked), with its calls declared."""
    import confluent_kafka

    package = Path(confluent_kafka.__file__).parent
    bundled = sorted(package.parent.glob("confluent_kafka.libs/librdkafka*"))
    bundled += sorted(package.glob(".dylibs/librdkafka*"))
    if not bundled:
        raise LoadFailed("confluent-kafka is installed without its librdkafka; install its wheel")
    lib = ctypes.CDLL(str(bundled[0]))
    for name, (result, arguments) in SIGNATURES.items():
        call = getattr(lib, name)
        call.restype, call.argtypes = result, arguments
    return lib


@functools.cache
def _message_destroy() -> Callable[[int], None]:
    """Without the GIL's hand-over, which would cost more than the call."""
    call = ctypes.PyDLL(library()._name).rd_kafka_message_destroy
    call.restype, call.argtypes = None, [c_void_p]
    return call


def version() -> str:
    return str(library().rd_kafka_version_str().decode())


def _check(error: int, what: str) -> None:
    if error:
        raise LoadFailed(f"{what}: {library().rd_kafka_err2str(error).decode()}")


class RoundTrips(NamedTuple):
    """Times from a request to its reply within one window of librdkafka's statistics."""

    requests: int
    p50_us: int
    p99_us: int


class _Client:
    """A librdkafka handle; `with` destroys it.

    It reports how long requests took while it is polled (`statistics.interval.ms`).
    """

    kind: int

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self.settings = {"bootstrap.servers": bootstrap, "log_level": QUIET, **settings}
        self.round_trips: list[RoundTrips] = []
        self._handle: int | None = None
        self._topics: dict[str, int] = {}
        self._on_statistics = StatisticsCallback(self._counted)

    def __enter__(self) -> Self:
        lib = library()
        text = ctypes.create_string_buffer(ERROR_TEXT_BYTES)
        conf = lib.rd_kafka_conf_new()
        for name, value in self.settings.items():
            done = lib.rd_kafka_conf_set(conf, name.encode(), str(value).encode(), text, len(text))
            if done != CONF_OK:
                raise LoadFailed(text.value.decode())
        self._configure(conf)
        self._handle = lib.rd_kafka_new(self.kind, conf, text, len(text))
        if not self._handle:
            raise LoadFailed(text.value.decode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for topic in self._topics.values():
            library().rd_kafka_topic_destroy(topic)
        self._topics.clear()
        if self._handle:
            library().rd_kafka_destroy(self._handle)
            self._handle = None

    def _configure(self, conf: int) -> None:
        library().rd_kafka_conf_set_stats_cb(conf, self._on_statistics)

    def _counted(self, handle: int, text: bytes, length: int, opaque: int) -> int:
        del handle, length, opaque
        for broker in json.loads(text)["brokers"].values():
            rtt = broker["rtt"]
            if rtt["cnt"]:
                self.round_trips.append(RoundTrips(rtt["cnt"], rtt["p50"], rtt["p99"]))
        return 0

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            self._topics[name] = library().rd_kafka_topic_new(self._handle, name.encode(), None)
        return self._topics[name]


class Producer(_Client):
    """Sends many equal messages."""

    kind = PRODUCER

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        super().__init__(bootstrap, {"delivery.report.only.error": "true", **settings})
        self._failures: list[int] = []
        self._on_delivery = DeliveryCallback(self._delivered)
        self._batches: dict[tuple[bytes, bool], tuple[bytes, Any]] = {}

    def _configure(self, conf: int) -> None:
        super()._configure(conf)
        library().rd_kafka_conf_set_dr_msg_cb(conf, self._on_delivery)

    def _delivered(self, handle: int, message: Any, opaque: int) -> None:
        del handle, opaque
        if message.contents.err:
            self._failures.append(message.contents.err)

    def send(self, topic: str, payload: bytes, partition: int = 0) -> None:
        """One message, copied at once."""
        message = RdMessage(payload=ctypes.cast(c_char_p(payload), c_void_p), length=len(payload))
        taken = library().rd_kafka_produce_batch(
            self._topic(topic), partition, COPY_PAYLOAD, ctypes.byref(message), 1
        )
        if taken != 1:
            _check(message.err, "the message was not taken")
        library().rd_kafka_poll(self._handle, 0)
        self._raise_failure()

    def send_copies(self, topic: str, payload: bytes, count: int) -> None:
        """So many equal messages to partition 0 with one call, copied at once."""
        messages = (RdMessage * count)()
        address = ctypes.cast(c_char_p(payload), c_void_p).value
        for message in messages:
            message.payload, message.length = address, len(payload)
        taken = library().rd_kafka_produce_batch(
            self._topic(topic), 0, COPY_PAYLOAD, messages, count
        )
        if taken != count:
            raise LoadFailed(f"{count - taken} messages were not taken: the queue is full")
        library().rd_kafka_poll(self._handle, 0)
        self._raise_failure()

    def enqueue(
        self,
        topic: str,
        payload: bytes,
        count: int,
        partitions: int = 1,
        *,
        is_varied: bool = False,
    ) -> None:
        """Hands over `count` messages, some to each partition in turn; waits for a full queue.

        Varied messages keep the payload's second half and differ in the first, so that a codec
        makes about half of them and not nothing.
        """
        batch = self._batch(payload, is_varied=is_varied)
        # A call for one partition costs librdkafka much less than one that names it per message.
        together = len(batch) if partitions == 1 else max(PIECE_MIN, len(batch) // partitions)
        partition = at = 0
        while count:
            size = min(count, together, len(batch) - at)
            taken = self._hand_over(topic, partition, batch, at, size)
            count -= taken
            at = (at + taken) % len(batch)
            if taken == size:
                partition = (partition + 1) % partitions

    def _hand_over(self, topic: str, partition: int, batch: Any, at: int, size: int) -> int:
        """How many of them the queue took."""
        lib = library()
        start = ctypes.cast(ctypes.byref(batch, at * ctypes.sizeof(RdMessage)), _MESSAGES)
        taken = lib.rd_kafka_produce_batch(self._topic(topic), partition, 0, start, size)
        lib.rd_kafka_poll(self._handle, 0 if taken == size else 1)
        self._raise_failure()
        return int(taken)

    def flush(self, timeout_s: float = 120.0) -> None:
        """Returns when everything is acknowledged."""
        deadline = time.monotonic() + timeout_s
        # Successes are not reported, so nothing would wake a longer call at the last ack.
        while library().rd_kafka_flush(self._handle, 1):
            self._raise_failure()
            if time.monotonic() > deadline:
                raise LoadFailed(f"not everything was acknowledged in {timeout_s:g} s")
        self._raise_failure()

    def _batch(self, payload: bytes, *, is_varied: bool) -> Any:
        """An array of messages ready to hand over."""
        key = (payload, is_varied)
        if key not in self._batches:
            array = (RdMessage * ENQUEUE_CHUNK)()
            values = _varied(payload, len(array)) if is_varied else payload
            address = ctypes.cast(c_char_p(values), c_void_p).value or 0
            step = len(payload) if is_varied else 0
            for index, message in enumerate(array):
                message.payload, message.length = address + index * step, len(payload)
            # The values stay as long as the array that points at them.
            self._batches[key] = (values, array)
        return self._batches[key][1]

    def _raise_failure(self) -> None:
        if self._failures:
            _check(self._failures[0], "delivery failed")


_MESSAGES: Final = POINTER(RdMessage)


def _varied(payload: bytes, count: int) -> bytes:
    source, half = random.Random(count), len(payload) // 2
    return b"".join(source.randbytes(half) + payload[half:] for _ in range(count))


class Consumer(_Client):
    """Reads partitions from the beginning, without a group."""

    kind = CONSUMER

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        super().__init__(bootstrap, settings)
        self._queue: int | None = None
        self._started: list[tuple[int, int]] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for rkt, partition in self._started:
            library().rd_kafka_consume_stop(rkt, partition)
        if self._queue:
            library().rd_kafka_queue_destroy(self._queue)
        super().__exit__(kind, error, trace)

    def start(self, topic: str, partitions: int = 1) -> None:
        lib = library()
        self._queue = lib.rd_kafka_queue_new(self._handle)
        for partition in range(partitions):
            rkt = self._topic(topic)
            failed = lib.rd_kafka_consume_start_queue(rkt, partition, OFFSET_BEGINNING, self._queue)
            if failed:
                raise LoadFailed(f"cannot read partition {partition} of {topic}")
            self._started.append((rkt, partition))

    def consume(self, count: int, timeout_s: float = 120.0) -> int:
        """Takes `count` messages; returns how many came."""
        lib, destroy = library(), _message_destroy()
        buffer = (c_void_p * CONSUME_CHUNK)()
        deadline = time.monotonic() + timeout_s
        seen = 0
        while seen < count:
            # The call waits until the buffer is full, so it must not ask for more than will come.
            wanted = min(CONSUME_CHUNK, count - seen)
            got = lib.rd_kafka_consume_batch_queue(self._queue, 100, buffer, wanted)
            if got > 0:
                messages = cast(list[int], buffer[:got])
                # Errors end a batch; a look at every message would make this the bottleneck.
                for message in (messages[0], messages[-1]):
                    _check(RdMessage.from_address(message).err, "consuming failed")
                deque(map(destroy, messages), 0)
                seen += got
            if time.monotonic() > deadline:
                raise LoadFailed(f"{seen} of {count} messages came in {timeout_s:g} s")
        return seen

    def poll(self) -> None:
        """Takes the statistics; not for a member of a group, whose queue is its consumer's."""
        library().rd_kafka_poll(self._handle, 0)

    def next_payload(self, timeout_s: float) -> bytes | None:
        """The next message's value as soon as it is there."""
        buffer = (c_void_p * 1)()
        wait_ms = int(timeout_s * 1000)
        got = library().rd_kafka_consume_batch_queue(self._queue, wait_ms, buffer, 1)
        if got < 1:
            return None
        address = cast(int, buffer[0])
        message = RdMessage.from_address(address)
        _check(message.err, "consuming failed")
        payload = ctypes.string_at(message.payload, message.length)
        _message_destroy()(address)
        return payload


class GroupConsumer(Consumer):
    """Reads a topic as a member of a group; the members share its partitions."""

    def __init__(self, bootstrap: str, group: str, settings: Settings) -> None:
        super().__init__(
            bootstrap, {"group.id": group, "auto.offset.reset": "earliest", **settings}
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._queue:
            library().rd_kafka_queue_destroy(self._queue)
            self._queue = None
        library().rd_kafka_consumer_close(self._handle)
        super().__exit__(kind, error, trace)

    def subscribe(self, topic: str) -> None:
        lib = library()
        _check(lib.rd_kafka_poll_set_consumer(self._handle), "no queue for the group")
        self._queue = lib.rd_kafka_queue_get_consumer(self._handle)
        topics = lib.rd_kafka_topic_partition_list_new(1)
        lib.rd_kafka_topic_partition_list_add(topics, topic.encode(), -1)
        try:
            _check(lib.rd_kafka_subscribe(self._handle, topics), f"cannot subscribe to {topic}")
        finally:
            lib.rd_kafka_topic_partition_list_destroy(topics)
