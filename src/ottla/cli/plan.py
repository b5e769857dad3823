"""`ottla plan`: brokers, cores, disk, network and memory for a workload, from measured figures."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import typer

from ottla import capacity
from ottla.capacity import Plan, Workload
from ottla.cli import output
from ottla.cli.failures import WrongUsage
from ottla.cli.help import examples
from ottla.cli.options import JsonOption

COUNTS: Final = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}
SIZES: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
DURATIONS: Final = {"S": 1, "M": 60, "H": 3600, "D": 86_400, "W": 604_800}
QUANTITY_MAX: Final = 1e18
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", re.IGNORECASE | re.ASCII)
# A producer hardly waits longer than this for a batch to fill.
BATCH_FILL_S_USUAL: Final = 0.1


def parse_count(text: str, option: str) -> float:
    """How many: 2500, 10k, 1.5M."""
    return _parse(text, option, COUNTS, "a number such as 2500, 10k or 1.5M")


def parse_bytes(text: str, option: str) -> int:
    """How large: 100, 1KB (1000 bytes), 64KiB (65,536)."""
    return round(_parse(text, option, SIZES, "a size such as 100B, 1KB or 64KiB"))


def parse_duration_s(text: str, option: str) -> float:
    """How long: 90s, 30m, 12h, 7d, 2w."""
    return _parse(text, option, DURATIONS, "a time such as 90s, 30m, 12h, 7d or 2w")


def _parse(text: str, option: str, units: Mapping[str, float], expected: str) -> float:
    match = QUANTITY.fullmatch(text.strip())
    unit = units.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise WrongUsage(f"{option} {text} is not {expected}.")
    value = float(match[1]) * unit
    if value > QUANTITY_MAX:
        raise WrongUsage(f"{option} {text} is too large; 10 to the power of 18 is the most.")
    if value < 1:
        raise WrongUsage(f"{option} {text} is too small; it must be at least 1.")
    return value


def plan(
    messages_per_second: Annotated[
        str, typer.Option(metavar="COUNT", help="Messages written, such as 10M.")
    ],
    message_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Key and value of one message; 1KB is 1000 bytes.")
    ],
    replication: Annotated[
        int, typer.Option(metavar="N", min=1, max=32_767, help="Copies of each partition.")
    ] = 3,
    retention: Annotated[str, typer.Option(metavar="TIME", help="How long data is kept.")] = "7d",
    reads: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000_000, help="Readers of each message.")
    ] = 3,
    partitions: Annotated[
        str | None,
        typer.Option(metavar="COUNT", help="In all topics; as few as will do if not given."),
    ] = None,
    topics: Annotated[str, typer.Option(metavar="COUNT", help="Topics.")] = "1",
    batch_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="What a request carries for a partition.")
    ] = "64KB",
    explain: Annotated[
        bool | None,
        typer.Option(
            "--explain/--no-explain",
            help="Show the arithmetic, line by line; the default on a terminal.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Shows what a cluster for a workload needs: brokers, cores, disk, network, memory.

    The figures come from coefficients that the benchmark measured on one machine, and from
    assumptions that docs/capacity.md names. No cluster is asked.
    """
    load = Workload(
        messages_per_s=parse_count(messages_per_second, "--messages-per-second"),
        message_bytes=parse_bytes(message_bytes, "--message-bytes"),
        replication=replication,
        retention_s=parse_duration_s(retention, "--retention"),
        reads=reads,
        topics=round(parse_count(topics, "--topics")),
        partitions=round(parse_count(partitions, "--partitions"))
        if partitions is not None
        else None,
        batch_bytes=parse_bytes(batch_bytes, "--batch-bytes"),
    )
    if load.partitions is not None and load.partitions < load.topics:
        raise WrongUsage(
            f"--partitions {partitions} is less than --topics {topics}; a topic has at least one."
        )
    made = capacity.plan(load)
    if as_json:
        measured = {"measured_on": capacity.MEASURED_ON, "revision": capacity.MEASURED_REVISION}
        row = dataclasses.asdict(load) | dataclasses.asdict(made) | measured
        output.show([row], as_json=True)
        return
    output.show(rows(made), as_json=False)
    if sys.stdout.isatty() if explain is None else explain:
        output.write("".join(f"{line}\n" for line in ("", *steps(load, made))).encode())
    for words in notes(load, made):
        output.say(words)


def rows(made: Plan) -> Iterator[dict[str, str]]:
    """The answer: what the cluster needs, and each of its brokers."""

    def row(need: str, cluster: str, broker: str) -> dict[str, str]:
        return {"need": need, "cluster": cluster, "each_broker": broker}

    def shared(need: str, amount: float, unit: str = "B") -> dict[str, str]:
        return row(need, quantity(amount, unit), quantity(amount / made.brokers, unit))

    yield row("brokers", f"{made.brokers:,}", "1 process")
    yield row("cores", f"{made.brokers:,}", f"1, {made.busy_share:.0%} busy")
    yield shared("disk", made.disk_bytes)
    yield shared("disk written", made.disk_written_bytes_per_s, "B/s")
    yield shared("network in", made.network_in_bytes_per_s, "B/s")
    yield shared("network out", made.network_out_bytes_per_s, "B/s")
    yield shared("memory", made.memory_bytes)
    yield row("replicas", f"{made.replicas:,}", f"{made.replicas / made.brokers:,.1f}")


def steps(load: Workload, made: Plan) -> Iterator[str]:
    """The arithmetic, one line per step, and where its coefficients come from."""
    for name, formula, result in (*_cpu_steps(load, made), *_byte_steps(load, made)):
        yield f"{name:<22} {formula} = {result}"
    yield (
        f"Coefficients: {capacity.MEASURED_BY}, {capacity.MEASURED_ON}, revision "
        f"{capacity.MEASURED_REVISION}; replication is assumed, not measured."
    )


def _cpu_steps(load: Workload, made: Plan) -> Iterator[tuple[str, str, str]]:
    rate, batches = f"{quantity(load.messages_per_s)}/s", f"{made.batches_per_s:,.0f}/s"
    written, read = made.copies_written, made.copies_read
    yield "copies written", "replication", f"{written}"
    yield "copies read", f"(replication {load.replication} - 1) + reads {load.reads}", f"{read}"
    together = max(load.batch_bytes, load.message_bytes)
    yield "batches", f"{rate} x {load.message_bytes:,} B / {together:,} B", batches
    fill = seconds(made.batch_fill_s)
    yield "a batch fills in", f"{made.partitions:,} partitions / {batches}", fill
    produce, consume = f"{made.produce_cpu_us:.4g} µs", f"{made.consume_cpu_us:.4g} µs"
    yield "CPU, writing", f"{rate} x {written} x {produce}", f"{made.cores_writing:,.1f} cores"
    yield "CPU, reading", f"{rate} x {read} x {consume}", f"{made.cores_reading:,.1f} cores"
    synced, plain = f"{capacity.SYNCED_REQUEST_CPU_US} µs", f"{capacity.REQUEST_CPU_US} µs"
    each = f"({written} x {synced} + {read} x {plain})"
    yield "CPU, requests", f"{batches} x {each}", f"{made.cores_requests:,.1f} cores"
    busy = f"{made.cores_busy:,.1f} cores / {capacity.BUSY_SHARE_MAX} busy"
    yield "brokers by CPU", busy, f"{made.brokers_by_cpu:,}"
    spread = f"{made.replicas:,} replicas / {capacity.PARTITIONS_MEASURED_MAX:,} a broker"
    yield "brokers by partitions", spread, f"{made.brokers_by_partitions:,}"
    largest = f"the largest of CPU, partitions and replication ({made.decided_by})"
    yield "brokers", largest, f"{made.brokers:,}"


def _byte_steps(load: Workload, made: Plan) -> Iterator[tuple[str, str, str]]:
    written, read = made.copies_written, made.copies_read
    data = quantity(made.wire_bytes_per_s, "B/s")
    with_headers = f"{made.wire_bytes_per_message:,.1f} B with record and batch headers"
    yield "data", f"{quantity(load.messages_per_s)}/s x {with_headers}", data
    yield "network in", f"{data} x {written}", quantity(made.network_in_bytes_per_s, "B/s")
    yield "network out", f"{data} x {read}", quantity(made.network_out_bytes_per_s, "B/s")
    stored = f"{quantity(made.stored_bytes_per_s, 'B/s')} with indexes"
    kept = quantity(made.disk_retained_bytes, "B")
    yield "disk, retained", f"{stored} x {load.retention_s:,.0f} s x {written}", kept
    still_open = quantity(made.disk_open_segments_bytes, "B")
    segment = quantity(made.disk_open_segments_bytes / made.replicas, "B")
    yield "disk, open segments", f"{made.replicas:,} replicas x {segment} at most", still_open
    base = quantity(capacity.IDLE_RSS_BYTES + capacity.LOADED_RSS_BYTES, "B")
    replicas = f"{made.replicas / made.brokers:,.0f} replicas x {capacity.PARTITION_RSS_BYTES:,} B"
    image = f"{made.partitions:,} partitions x {capacity.IMAGE_PARTITION_BYTES} B"
    process = f"{quantity(made.broker_process_bytes, 'B')} a broker"
    yield "memory, process", f"{base} + {replicas} + {image}", process
    cache = f"{quantity(made.broker_page_cache_bytes, 'B')} a broker"
    yield "memory, page cache", f"{capacity.PAGE_CACHE_S} s of what a broker writes", cache


def notes(load: Workload, made: Plan) -> Iterator[str]:
    """What the person should doubt about this plan."""
    if made.batch_fill_s > BATCH_FILL_S_USUAL:
        arriving = load.batch_bytes * BATCH_FILL_S_USUAL / made.batch_fill_s
        sent = max(load.message_bytes, round(arriving))
        hasty = dataclasses.replace(load, partitions=made.partitions, batch_bytes=sent)
        brokers = capacity.plan(hasty).brokers
        if brokers > made.brokers:
            yield (
                f"A partition's batch of {load.batch_bytes:,} B takes {seconds(made.batch_fill_s)} "
                f"to fill; producers that wait {seconds(BATCH_FILL_S_USUAL)} send {sent:,} B, "
                f"which takes {brokers:,} brokers."
            )
    if made.partitions < made.brokers_by_cpu:
        yield (
            f"Only {made.partitions:,} of {made.brokers:,} brokers would lead a partition; "
            "give --partitions at least as many as brokers."
        )


def seconds(amount_s: float) -> str:
    return f"{amount_s:,.0f} s" if amount_s >= 100 else f"{amount_s:.3g} s"


def quantity(amount: float, unit: str = "") -> str:
    """Three digits and a decimal prefix: 10M, 1.25 GB/s."""
    prefixes = ("", "K", "M", "G", "T", "P", "E")
    power = 0
    while round(amount, 2) >= 999.5 and power < len(prefixes) - 1:
        amount /= 1000
        power += 1
    number = f"{amount:,.0f}" if amount >= 99.95 else f"{amount:.3g}"
    return f"{number}{' ' if unit else ''}{prefixes[power]}{unit}"


def register(root: typer.Typer) -> None:
    root.command(
        "plan",
        epilog=examples(
            "ottla plan --messages-per-second 10M --message-bytes 1KB --replication 3 "
            "--retention 7d",
            "ottla plan --messages-per-second 50k --message-bytes 200B --reads 1 --explain",
            "ottla plan --messages-per-second 10M --message-bytes 1KB --partitions 1M --json",
        ),
    )(plan)
