"""What a workload needs: the arithmetic, and that its coefficients are those that were measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla import capacity
from ottla.capacity import Plan, Workload, message_cpu_us, plan
from ottla.wire.records import Record, encode_batch

HISTORY = Path(__file__).parent.parent.parent / "docs" / "benchmarks" / "history.jsonl"
TARGET = Workload(messages_per_s=10e6, message_bytes=1000, topics=100_000, partitions=1_000_000)

WORKLOADS = st.builds(
    Workload,
    messages_per_s=st.floats(1, 1e9),
    message_bytes=st.integers(1, 10_000_000),
    replication=st.integers(1, 7),
    retention_s=st.floats(1, 1e9),
    reads=st.integers(0, 50),
    topics=st.integers(1, 1000),
    partitions=st.none() | st.integers(1000, 10_000_000),
    batch_bytes=st.integers(1, 10_000_000),
)
GROWING = ("messages_per_s", "message_bytes", "replication", "reads", "partitions")


def measured(kind: str, **wanted: Any) -> dict[str, Any]:
    """The medians of one benchmark run that the history holds."""
    runs = [json.loads(line) for line in HISTORY.read_text().splitlines()]
    found = [
        run
        for run in runs
        if run["kind"] == kind and all(run[name] == value for name, value in wanted.items())
    ]
    assert found, f"docs/benchmarks/history.jsonl has no run {kind} {wanted}"
    cases: dict[str, dict[str, list[float]]] = found[-1]["sides"]["ottla"]
    return {
        case: {name: figure[0] for name, figure in figures.items()}
        for case, figures in cases.items()
    }


def test_coefficients_are_those_of_the_run_that_is_named() -> None:
    run = measured("quick", rev=capacity.MEASURED_REVISION)
    for cost, case in ((capacity.SMALL, "backlog-100B"), (capacity.LARGE, "backlog-1KB")):
        both = (run[case], run[f"{case}-synced"])
        assert cost.produce_cpu_us == max(row["produce_cpu_us"] for row in both)
        assert cost.consume_cpu_us == max(row["consume_cpu_us"] for row in both)
    assert round(run["requests-16"]["request_cpu_us"], 1) == capacity.REQUEST_CPU_US
    assert round(run["requests-16-synced"]["request_cpu_us"], 1) == capacity.SYNCED_REQUEST_CPU_US
    assert round(run["idle"]["rss_mb"], 1) * 1e6 == capacity.IDLE_RSS_BYTES
    many = run[f"partitions-{capacity.PARTITIONS_MEASURED_MAX}"]["rss_mb"]
    each = (round(many, 1) * 1e6 - capacity.IDLE_RSS_BYTES) / capacity.PARTITIONS_MEASURED_MAX
    assert each == pytest.approx(capacity.PARTITION_RSS_BYTES, abs=1)


def test_a_message_of_a_measured_size_costs_what_was_measured() -> None:
    assert message_cpu_us(100) == (0.135, 0.110)
    assert message_cpu_us(1000) == pytest.approx((1.925, 0.675))
    assert message_cpu_us(10) == message_cpu_us(100)
    assert message_cpu_us(10_000) == pytest.approx((19.25, 6.75))


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_a_larger_message_never_costs_less(one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert all(a <= b for a, b in zip(message_cpu_us(small), message_cpu_us(large), strict=True))


@given(WORKLOADS, st.sampled_from(GROWING), st.floats(1, 100))
def test_more_load_never_needs_fewer_brokers(load: Workload, field: str, factor: float) -> None:
    before = getattr(load, field)
    if before is None:
        return
    more = before * factor if isinstance(before, float) else int(before * factor)
    # The same partitions: where none are given, a plan takes as few as its brokers need.
    grown = dataclasses.replace(load, **{field: more})
    assert plan(grown).brokers >= plan(load).brokers
    assert plan(grown).disk_retained_bytes >= plan(load).disk_retained_bytes * 0.999


@given(WORKLOADS, st.integers(1, 100))
def test_larger_batches_never_need_more_brokers(load: Workload, factor: int) -> None:
    larger = dataclasses.replace(load, batch_bytes=load.batch_bytes * factor)
    assert plan(larger).brokers <= plan(load).brokers


@given(WORKLOADS)
def test_no_broker_is_asked_for_more_than_was_measured(load: Workload) -> None:
    made = plan(load)
    assert made.busy_share <= capacity.BUSY_SHARE_MAX * 1.000001
    assert made.replicas / made.brokers <= capacity.PARTITIONS_MEASURED_MAX
    assert made.brokers >= load.replication


def test_every_copy_is_written_and_followers_read_like_consumers() -> None:
    alone = plan(Workload(1e6, 1000, replication=1, reads=0))
    assert (alone.copies_written, alone.copies_read) == (1, 0)
    assert alone.cores_reading == alone.network_out_bytes_per_s == 0
    assert alone.cores_writing == pytest.approx(1.925)
    trio = plan(Workload(1e6, 1000, replication=3, reads=2))
    assert (trio.copies_written, trio.copies_read) == (3, 4)
    assert trio.cores_reading == pytest.approx(4 * 0.675)
    assert trio.network_in_bytes_per_s == pytest.approx(3 * trio.wire_bytes_per_s)
    assert trio.network_out_bytes_per_s == pytest.approx(4 * trio.wire_bytes_per_s)


@pytest.mark.parametrize(
    ("load", "decided_by", "brokers"),
    [
        (dataclasses.replace(TARGET, partitions=None, topics=1), "CPU", 336),
        (TARGET, "partitions", 600),
        (Workload(1, 1, replication=5), "replication", 5),
    ],
)
def test_the_scarcest_thing_decides(load: Workload, decided_by: str, brokers: int) -> None:
    made = plan(load)
    assert (made.decided_by, made.brokers) == (decided_by, brokers)


def test_a_batch_holds_at_least_one_message() -> None:
    def batches(batch_bytes: int) -> Plan:
        return plan(Workload(1000, 1000, batch_bytes=batch_bytes))

    assert batches(1).batches_per_s == batches(1000).batches_per_s == 1000
    assert batches(4000).batches_per_s == 250


@pytest.mark.parametrize(("message_bytes", "count"), [(100, 640), (1000, 64), (1000, 1)])
def test_bytes_on_the_wire_are_not_below_those_of_a_real_batch(
    message_bytes: int, count: int
) -> None:
    now_ms = 1_790_000_000_000
    value = bytes(message_bytes)
    batch = encode_batch([Record(at, now_ms + at, None, value) for at in range(count)])
    load = Workload(1e6, message_bytes, batch_bytes=message_bytes * count)
    assert len(batch) / count <= plan(load).wire_bytes_per_message < len(batch) / count * 1.05


def test_a_slow_partitions_open_segment_is_a_week_of_it_and_not_a_whole_one() -> None:
    made = plan(Workload(1, 1000, replication=1, retention_s=60, partitions=1))
    assert made.disk_open_segments_bytes == pytest.approx(made.stored_bytes_per_s * 7 * 86_400)
    full = plan(Workload(1e6, 1000, replication=1, retention_s=60, partitions=1))
    assert full.disk_open_segments_bytes == capacity.SEGMENT_BYTES
