"""A broker's /metrics for people: units, rates, and only what one looks at first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

LINE: Final = re.compile(r"^(?P<name>ottla_\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPE: Final = re.compile(r"\\(.)")
SIZES: Final = ("B", "kB", "MB", "GB", "TB", "PB")
MOST: Final = 0.99


class Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


class Figures:
    """What one scrape has brought, by name; labels are kept."""

    def __init__(self, samples: Mapping[str, list[Sample]]) -> None:
        self._samples = samples

    @classmethod
    def parse(cls, text: str) -> Figures:
        """Lines that are no figures of ours are passed over."""
        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for line in text.splitlines():
            found = LINE.match(line)
            if found is None:
                continue
            labels = {
                name: ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], value)
                for name, value in LABEL.findall(found["labels"] or "")
            }
            try:
                samples[found["name"]].append(Sample(labels, float(found["value"])))
            except ValueError:
                continue
        return cls(samples)

    def all(self, name: str) -> list[Sample]:
        return self._samples.get(f"ottla_{name}", [])

    def total(self, name: str) -> float | None:
        """Over all labels; None is what this broker does not tell."""
        samples = self.all(name)
        return sum(sample.value for sample in samples) if samples else None

    def plain(self) -> dict[str, float]:
        """Those without labels that are no parts of histograms."""
        return {
            name.removeprefix("ottla_"): _whole(samples[0].value)
            for name, samples in self._samples.items()
            if not samples[0].labels and not name.endswith(("_sum", "_count"))
        }

    def latency(self, name: str) -> str | None:
        """The average, and the bound that most have kept."""
        count, spent_s = self.total(f"{name}_count"), self.total(f"{name}_sum")
        if not count or spent_s is None:
            return None
        counts: defaultdict[float, float] = defaultdict(float)
        for sample in self.all(f"{name}_bucket"):
            counts[float(sample.labels["le"])] += sample.value
        bound_s = next((le for le in sorted(counts) if counts[le] >= MOST * count), float("inf"))
        most = "" if bound_s == float("inf") else f", 99 % within {duration(bound_s)}"
        return f"{duration(spent_s / count)} on average{most}"


def figures_for_people(
    before: Figures, after: Figures, seconds: float, now_s: float
) -> dict[str, str]:
    """What a person wants to know first, from two scrapes that lie `seconds` apart."""
    return dict(_rows(before, after, seconds, now_s))


def _rows(
    before: Figures, after: Figures, seconds: float, now_s: float
) -> Iterator[tuple[str, str]]:
    def rate(name: str) -> float:
        return max(0.0, (after.total(name) or 0) - (before.total(name) or 0)) / seconds

    for sample in after.all("info"):
        yield "version", sample.labels.get("version", "?")
    started_s = after.total("started_timestamp_seconds")
    if started_s:
        yield "up for", duration(max(0.0, now_s - started_s))
    yield from _holdings(after)
    for title, way in (("written", "in"), ("read", "out")):
        messages, size_bytes = f"topic_messages_{way}_total", f"topic_bytes_{way}_total"
        since = after.total(messages), after.total(size_bytes)
        if since[0] is not None and since[1] is not None:
            now = f"{amount(rate(messages))} messages/s, {size(rate(size_bytes))}/s"
            all_in_all = f"{amount(since[0])} messages, {size(since[1])}"
            yield title, f"{now}; since the start {all_in_all}"
    requests = after.total("requests_total")
    if requests is not None:
        failed = amount(after.total("request_errors_total") or 0)
        now = f"{amount(rate('requests_total'))}/s"
        yield "requests", f"{now}; since the start {amount(requests)}, of which {failed} failed"
    yield from _disks(after)
    yield from _rounds(after, now_s)


def _holdings(figures: Figures) -> Iterator[tuple[str, str]]:
    partitions = figures.total("partitions")
    if partitions is not None:
        failing = amount(figures.total("partitions_failing") or 0)
        corrupt = amount(figures.total("partitions_corrupt") or 0)
        ill = f"of which the disk refuses {failing} and {corrupt} are damaged"
        yield "partitions here", f"{amount(partitions)}, {ill}"
    connections = figures.total("connections")
    if connections is not None:
        since = [
            f"{amount(count)} {what}"
            for what in ("accepted", "refused", "dropped")
            if (count := figures.total(f"connections_{what}_total")) is not None
        ]
        told = f"; since the start {', '.join(since)}" if since else ""
        yield "connections", f"{amount(connections)} open{told}"


def _disks(figures: Figures) -> Iterator[tuple[str, str]]:
    log_bytes, segments = figures.total("log_size_bytes"), figures.total("log_segments")
    if log_bytes is not None and segments is not None:
        yield "log", f"{size(log_bytes)} in {amount(segments)} segments"
    rooms = {
        kind: {sample.labels.get("directory"): sample.value for sample in figures.all(kind)}
        for kind in ("disk_free_bytes", "disk_total_bytes")
    }
    for sample in figures.all("directory_online"):
        path = sample.labels.get("directory")
        free, total = (rooms[kind].get(path) for kind in rooms)
        if not sample.value:
            yield f"directory {path}", "offline"
        elif free is not None and total is not None:
            yield f"directory {path}", f"{size(free)} of {size(total)} free"
    for title, name in (
        ("sync to disk", "log_sync_seconds"),
        ("event loop delay", "event_loop_delay_seconds"),
    ):
        latency = figures.latency(name)
        if latency is not None:
            yield title, latency


def _rounds(figures: Figures, now_s: float) -> Iterator[tuple[str, str]]:
    for title, when, what, done in (
        ("retention", "retention_last_run", "retention_deleted_bytes", "has freed {}"),
        ("compaction", "compaction_last_run", "compaction_freed_bytes", "has freed {}"),
        ("scrub", "scrub_last_pass", "scrub_corruptions", "has found {} damaged places"),
    ):
        at_s, count = figures.total(f"{when}_timestamp_seconds"), figures.total(f"{what}_total")
        if at_s is not None and count is not None:
            shown = size(count) if what.endswith("bytes") else amount(count)
            yield title, f"{age(at_s, now_s)}, {done.format(shown)}"


def age(at_s: float, now_s: float) -> str:
    if not at_s:
        return "has not run yet"
    return f"ran {duration(max(0.0, now_s - at_s))} ago"


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value


def amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or float(number).is_integer() else f"{number:.1f}"


def size(count_bytes: float) -> str:
    """In steps of a thousand, as disks are sold."""
    unit = 0
    while round(count_bytes, 1) >= 1000 and unit < len(SIZES) - 1:
        count_bytes /= 1000
        unit += 1
    return f"{count_bytes:.1f}".removesuffix(".0") + f" {SIZES[unit]}"


def duration(seconds: float) -> str:
    """The two largest units; milliseconds below a second."""
    if seconds < 1:
        return f"{seconds * 1000:.1f}".removesuffix(".0") + " ms"
    left = int(seconds)
    parts = []
    for unit_s, name in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, unit_s)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
