"""What a broker's /metrics says, in words for people."""

from __future__ import annotations

from ottla.cli.figures import Figures, age, amount, duration, figures_for_people, size

BEFORE = """\
# HELP ottla_partitions Partitions here.
ottla_info{version="1.2.3"} 1
ottla_started_timestamp_seconds 1000
ottla_partitions 52
ottla_partitions_failing 1
ottla_partitions_corrupt 0
ottla_connections 3
ottla_connections_accepted_total 90
ottla_connections_refused_total 0
ottla_connections_dropped_total 2
ottla_topic_messages_in_total{topic="a"} 10
ottla_topic_bytes_in_total{topic="a"} 1000
ottla_topic_messages_out_total{topic="a"} 0
ottla_topic_bytes_out_total{topic="a"} 0
ottla_requests_total{api="Fetch"} 5
ottla_request_errors_total{api="Fetch"} 1
ottla_disk_free_bytes{directory="/d, \\"x\\""} 500000000
ottla_disk_total_bytes{directory="/d, \\"x\\""} 2000000000
ottla_directory_online{directory="/d, \\"x\\""} 1
ottla_directory_online{directory="/gone"} 0
ottla_log_size_bytes{topic="a"} 2048
ottla_log_segments{topic="a"} 2
ottla_log_sync_seconds_bucket{directory="/d",le="0.001"} 0
ottla_log_sync_seconds_bucket{directory="/d",le="0.005"} 99
ottla_log_sync_seconds_bucket{directory="/d",le="+Inf"} 100
ottla_log_sync_seconds_sum{directory="/d"} 0.2
ottla_log_sync_seconds_count{directory="/d"} 100
ottla_event_loop_delay_seconds_bucket{le="0.001"} 10
ottla_event_loop_delay_seconds_bucket{le="+Inf"} 10
ottla_event_loop_delay_seconds_sum 0.001
ottla_event_loop_delay_seconds_count 10
ottla_scrub_last_pass_timestamp_seconds 0
ottla_scrub_corruptions_total 0
ottla_retention_last_run_timestamp_seconds 9000
ottla_retention_deleted_bytes_total 1500000
"""


def after(text: str) -> str:
    text = text.replace('messages_in_total{topic="a"} 10', 'messages_in_total{topic="a"} 30')
    text = text.replace('bytes_in_total{topic="a"} 1000', 'bytes_in_total{topic="a"} 5000')
    return text.replace('requests_total{api="Fetch"} 5', 'requests_total{api="Fetch"} 9')


def test_figures_have_units_and_counters_become_rates() -> None:
    shown = figures_for_people(
        Figures.parse(BEFORE), Figures.parse(after(BEFORE)), seconds=2.0, now_s=9065.0
    )
    assert shown == {
        "version": "1.2.3",
        "up for": "2 h 14 min",
        "partitions here": "52, of which the disk refuses 1 and 0 are damaged",
        "connections": "3 open; since the start 90 accepted, 0 refused, 2 dropped",
        "written": "10 messages/s, 2 kB/s; since the start 30 messages, 5 kB",
        "read": "0 messages/s, 0 B/s; since the start 0 messages, 0 B",
        "requests": "2/s; since the start 9, of which 1 failed",
        "log": "2 kB in 2 segments",
        'directory /d, "x"': "500 MB of 2 GB free",
        "directory /gone": "offline",
        "sync to disk": "2 ms on average, 99 % within 5 ms",
        "event loop delay": "0.1 ms on average, 99 % within 1 ms",
        "retention": "ran 1 min 5 s ago, has freed 1.5 MB",
        "scrub": "has not run yet, has found 0 damaged places",
    }


def test_what_an_older_broker_does_not_tell_is_left_out() -> None:
    few = Figures.parse("ottla_connections 3\nnonsense\nottla_bad x\n")
    assert figures_for_people(few, few, seconds=1.0, now_s=0.0) == {"connections": "3 open"}


def test_amounts_sizes_and_times_are_short() -> None:
    assert [amount(number) for number in (0, 0.25, 999, 1234, 5_600_000)] == [
        "0", "0.2", "999", "1,234", "5,600,000",
    ]  # fmt: skip
    assert [size(number) for number in (0, 999, 1000, 1_550_000, 2e9, 3.25e12)] == [
        "0 B", "999 B", "1 kB", "1.6 MB", "2 GB", "3.2 TB",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.0004, 0.05, 5, 65, 7260, 200_000)] == [
        "0.4 ms", "50 ms", "5 s", "1 min 5 s", "2 h 1 min", "2 d 7 h",
    ]  # fmt: skip
    assert age(0.0, 5.0) == "has not run yet"
