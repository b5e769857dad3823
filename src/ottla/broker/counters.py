"""What the broker counts about itself, and how a scraper gets to read it.

On the hot path a count is one add on an attribute of an object that the caller already holds;
names, labels and text exist only while somebody scrapes. What can be computed from the broker's
state (log sizes, lag, connections) is not counted at all but read by a callback at that moment.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.gateway.prometheus import Buckets, Family, HistogramFamily, Kind, Sample, render

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

LATENCY_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
TOPICS_MAX: Final = 10_000
SERIES_PER_FAMILY_MAX: Final = 20_000
OTHER_TOPICS: Final = "__other__"
LOOP_DELAY_INTERVAL_S: Final = 0.5


class Histogram:
    """Counts per bucket, not cumulative, and the sum of what was observed."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.total += seconds

    def buckets(self, *labels: str) -> Buckets:
        return Buckets(labels, LATENCY_BOUNDS_S, self.counts, self.total)


class ApiMetrics(Histogram):
    """One API's requests, held by its route: how many, how many failed, how long each took.

    A request is observed from its last byte read to its reply handed to the transport.
    """

    __slots__ = ("count", "errors", "name")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.count = 0
        self.errors = 0


class TopicMetrics:
    """One topic's traffic; its partitions hold it."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "fetch_errors",
        "fetch_requests",
        "isr_expansions",
        "isr_shrinks",
        "messages_in",
        "messages_out",
        "name",
        "produce_errors",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages_in = 0
        self.messages_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.produce_requests = 0
        self.fetch_requests = 0
        self.produce_errors = 0
        self.fetch_errors = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.isr_shrinks = 0
        self.isr_expansions = 0


TOPIC_COUNTERS: Final = (
    ("messages_in", "ottla_topic_messages_in_total", "Messages appended."),
    ("messages_out", "ottla_topic_messages_out_total", "Messages sent to fetching clients."),
    ("bytes_in", "ottla_topic_bytes_in_total", "Bytes of record batches appended."),
    ("bytes_out", "ottla_topic_bytes_out_total", "Bytes of record batches sent."),
    (
        "produce_requests",
        "ottla_topic_produce_requests_total",
        "Partitions of this topic in produce requests.",
    ),
    (
        "fetch_requests",
        "ottla_topic_fetch_requests_total",
        "Partitions of this topic that fetches looked at; in a session, those with something new.",
    ),
    (
        "produce_errors",
        "ottla_topic_produce_errors_total",
        "Partitions answered with an error in produce responses.",
    ),
    (
        "fetch_errors",
        "ottla_topic_fetch_errors_total",
        "Partitions answered with an error in fetch responses.",
    ),
    (
        "replication_bytes_in",
        "ottla_topic_replication_bytes_in_total",
        "Bytes of record batches copied from leaders.",
    ),
    (
        "replication_bytes_out",
        "ottla_topic_replication_bytes_out_total",
        "Bytes of record batches sent to followers.",
    ),
    (
        "isr_shrinks",
        "ottla_topic_isr_shrinks_total",
        "How often a replica of a partition that this node leads was no longer in sync.",
    ),
    (
        "isr_expansions",
        "ottla_topic_isr_expansions_total",
        "How often a replica of a partition that this node leads was in sync again.",
    ),
)


class Gauge(NamedTuple):
    """A family that is computed when it is read."""

    name: str
    kind: Kind
    help: str
    label_names: tuple[str, ...]
    read: Callable[[], Iterable[Sample]]


class Metrics:
    """All of one broker's counters. Callers add to the attributes directly."""

    def __init__(self) -> None:
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_dropped = 0
        self.bytes_received = 0
        self._sync_latencies: dict[str, Histogram] = {}
        self.loop_delay = Histogram()
        self._apis: dict[int, ApiMetrics] = {}
        self._topics: dict[str, TopicMetrics] = {}
        self._other_topics = TopicMetrics(OTHER_TOPICS)
        self._gauges: list[Gauge] = []
        self._series_left_out = 0

    def api(self, key: int, name: str) -> ApiMetrics:
        """The counters of one API; ask once and keep the answer."""
        return self._apis.setdefault(key, ApiMetrics(name))

    def topic(self, name: str) -> TopicMetrics:
        """The counters of one topic; past TOPICS_MAX all others share one."""
        known = self._topics.get(name)
        if known is not None:
            return known
        if len(self._topics) >= TOPICS_MAX:
            return self._other_topics
        return self._topics.setdefault(name, TopicMetrics(name))

    def sync_latency(self, directory: str) -> Histogram:
        """The syncs of one data directory; ask once and keep the answer."""
        return self._sync_latencies.setdefault(directory, Histogram())

    def forget_topic(self, name: str) -> None:
        """The topic is deleted: its series end."""
        self._topics.pop(name, None)

    def gauge(
        self,
        name: str,
        help: str,
        read: Callable[[], Iterable[Sample]],
        label_names: tuple[str, ...] = (),
        *,
        kind: Kind = "gauge",
    ) -> None:
        """Registers a family that `read` computes at every scrape, as (label values, value)."""
        self._gauges.append(Gauge(name, kind, help, label_names, read))

    def value(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Registers a gauge without labels."""
        self.gauge(name, help, lambda: (((), read()),))

    def count(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Registers a counter without labels that somebody else keeps."""
        self.gauge(name, help, lambda: (((), read()),), kind="counter")

    def render(self) -> bytes:
        self._series_left_out = 0
        return render(self._families())

    def catalogue(self) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
        """Name, kind, labels and meaning of every family, read by nobody and of no cost."""
        for family in (*self._counted_families(), *process_families()):
            kind = family.kind if isinstance(family, Family) else "histogram"
            yield family.name, kind, family.label_names, family.help
        for gauge in self._gauges:
            yield gauge.name, gauge.kind, gauge.label_names, gauge.help
        left_out = self._left_out_family()
        yield left_out.name, left_out.kind, (), left_out.help

    def _families(self) -> Iterator[Family | HistogramFamily]:
        yield from self._counted_families()
        for gauge in self._gauges:
            samples = self._bounded(gauge.read())
            yield Family(gauge.name, gauge.kind, gauge.help, gauge.label_names, samples)
        yield from process_families()
        yield self._left_out_family()

    def _left_out_family(self) -> Family:
        left_out = "Series that this page leaves out because a family has too many."
        return _single("ottla_metrics_series_left_out", "gauge", left_out, self._series_left_out)

    def _counted_families(self) -> Iterator[Family | HistogramFamily]:
        yield from self._api_families()
        yield from self._topic_families()
        yield from self._counter_families()
        yield HistogramFamily(
            "ottla_log_sync_seconds",
            "Time of one group commit to disk.",
            ("directory",),
            (latency.buckets(path) for path, latency in self._sync_latencies.items()),
        )
        yield HistogramFamily(
            "ottla_event_loop_delay_seconds",
            "How late a timer of the event loop fired.",
            (),
            (self.loop_delay.buckets(),),
        )

    def _bounded(self, samples: Iterable[Sample]) -> list[Sample]:
        series = iter(samples)
        kept = list(islice(series, SERIES_PER_FAMILY_MAX))
        self._series_left_out += sum(1 for _ in series)
        return kept

    def _api_families(self) -> Iterator[Family | HistogramFamily]:
        used = [api for api in self._apis.values() if api.count]
        yield Family(
            "ottla_requests_total",
            "counter",
            "Requests received.",
            ("api",),
            (((api.name,), api.count) for api in used),
        )
        yield Family(
            "ottla_request_errors_total",
            "counter",
            "Requests answered with an error as a whole.",
            ("api",),
            (((api.name,), api.errors) for api in used),
        )
        yield HistogramFamily(
            "ottla_request_seconds",
            "Time from a request to its reply, waiting included (a fetch waits for data).",
            ("api",),
            (api.buckets(api.name) for api in used),
        )

    def _topic_families(self) -> Iterator[Family]:
        topics = list(self._topics.values())
        if len(topics) >= TOPICS_MAX:
            topics.append(self._other_topics)
        for attribute, name, help in TOPIC_COUNTERS:
            samples = (((topic.name,), getattr(topic, attribute)) for topic in topics)
            yield Family(name, "counter", help, ("topic",), samples)

    def _counter_families(self) -> Iterator[Family]:
        for value, name, help in (
            (self.connections_accepted, "connections_accepted", "Connections accepted."),
            (self.connections_refused, "connections_refused", "Connections above the limit."),
            (
                self.connections_dropped,
                "connections_dropped",
                "Connections closed because their client broke a rule or did not read.",
            ),
            (self.bytes_received, "received_bytes", "Bytes read from clients."),
        ):
            yield _single(f"ottla_{name}_total", "counter", help, value)


def _single(name: str, kind: Kind, help: str, value: float) -> Family:
    return Family(name, kind, help, (), (((), value),))


def process_families() -> Iterator[Family]:
    """The process, under the names every Prometheus client library uses."""
    times = os.times()
    cpu_s = times.user + times.system
    yield _single("process_cpu_seconds_total", "counter", "User and system CPU time.", cpu_s)
    for read, name, help in (
        (_start_time_s, "process_start_time_seconds", "When the process began, since 1970."),
        (_resident_bytes, "process_resident_memory_bytes", "Resident memory."),
        (_open_files, "process_open_fds", "Open file descriptors."),
    ):
        try:
            value = read()
        except OSError:  # Only Linux has /proc.
            continue
        yield _single(name, "gauge", help, value)


def _start_time_s() -> float:
    with open("/proc/self/stat", "rb") as file:
        # The name of the program, in brackets, may hold anything; what follows is field 3 and on.
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    with open("/proc/stat", "rb") as file:
        boot_s = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    return boot_s + ticks / os.sysconf("SC_CLK_TCK")


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class LoopDelayProbe:
    """A timer that observes how late it is."""

    def __init__(self, loop: AbstractEventLoop, delay: Histogram) -> None:
        self._loop = loop
        self._delay = delay
        self._timer: TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        self._due_s = self._loop.time() + LOOP_DELAY_INTERVAL_S
        self._timer = self._loop.call_at(self._due_s, self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._delay.observe(max(0.0, self._loop.time() - self._due_s))
        self.start()
