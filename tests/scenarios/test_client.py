"""Our own client against a real broker, also while that one crashes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from ottla.client.blocking import Blocking, shared, wait_for
from ottla.client.cluster import Cluster
from ottla.client.failures import (
    BadSetting,
    ClientFailed,
    GaveUp,
    NoAnswer,
    NotTrusted,
    OffsetOutOfRange,
)
from ottla.client.range_reader import read_range
from ottla.client.security import Security
from ottla.client.settings import ClientSettings
from ottla.client.values import EARLIEST, LATEST, Fetched
from ottla.errors import ErrorCode, UnknownTopicOrPartition
from ottla.testing import Broker
from ottla.types import TopicPartition
from ottla.wire.records import Record, decode_records, encode_batch, headers_in
from scenarios.polling import until

T = TypeVar("T")
# Not a constant: retention takes what is a week old.
NOW_MS = int(time.time() * 1000)
RUN_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"log.retention.check.interval.ms": 100}) as running:
        yield running


def settings_for(broker: Broker, **changes: float) -> ClientSettings:
    return ClientSettings((broker.bootstrap,), **changes)


def in_cluster(settings: ClientSettings, use: Callable[[Cluster], Awaitable[T]]) -> T:
    async def main() -> T:
        async with Cluster(settings) as cluster:
            return await use(cluster)

    return asyncio.run(main())


def batch_of(*values: bytes, timestamp: int = NOW_MS) -> bytearray:
    return encode_batch([Record(at, timestamp, b"k", value) for at, value in enumerate(values)])


async def write(cluster: Cluster, partition: TopicPartition, *values: bytes) -> int:
    """Produces one batch and returns its first offset."""
    made = await cluster.produce({partition: batch_of(*values)}, acks=-1, timeout_ms=10_000)
    assert made[partition].error_code == 0
    return made[partition].base_offset


def values_of(fetches: Iterator[Fetched], start: int = 0) -> list[bytes | None]:
    return [
        record.value
        for fetched in fetches
        for at, _ in headers_in(fetched.records)
        for record in decode_records(fetched.records, at)
        if record.offset >= start
    ]


def test_topics_by_name_and_all_of_them(broker):
    broker.create_topic("listed", 3)

    async def use(cluster: Cluster) -> None:
        named = await cluster.topics(["listed", "not-there"])
        assert list(named) == ["listed"]
        assert named["listed"].partitions == (0, 1, 2)
        everything = await cluster.topics()
        assert everything["listed"] == named["listed"]
        # Asking for a topic does not make it.
        assert "not-there" not in everything

    in_cluster(settings_for(broker), use)


def test_offsets_by_end_beginning_and_time(broker):
    broker.create_topic("timed", 2)
    first, second = TopicPartition("timed", 0), TopicPartition("timed", 1)

    async def use(cluster: Cluster) -> None:
        for at in range(3):
            batch = batch_of(b"a", b"b", timestamp=NOW_MS + 1000 * at)
            await cluster.produce({first: batch, second: batch}, acks=-1, timeout_ms=10_000)
        found = await cluster.list_offsets({first: LATEST, second: EARLIEST})
        assert [found[first].offset, found[second].offset] == [6, 0]
        found = await cluster.list_offsets({first: NOW_MS + 1, second: NOW_MS + 9999})
        assert found[first] == (2, NOW_MS + 1000)
        assert found[second].offset == -1

    in_cluster(settings_for(broker), use)


def test_what_is_unknown_is_named(broker):
    broker.create_topic("small", 1)

    async def use(cluster: Cluster) -> None:
        with pytest.raises(UnknownTopicOrPartition, match="nowhere-3: UNKNOWN_TOPIC"):
            await cluster.fetch(TopicPartition("nowhere", 3), 0, max_bytes=1000)
        with pytest.raises(UnknownTopicOrPartition, match="small-1"):
            await cluster.list_offsets({TopicPartition("small", 1): LATEST})

    in_cluster(settings_for(broker), use)


def test_a_group_keeps_the_positions_of_those_who_are_no_members(broker):
    broker.create_topic("followed", 3)
    first, second, third = (TopicPartition("followed", at) for at in range(3))

    async def use(cluster: Cluster) -> None:
        assert await cluster.committed("followers", [first]) == {}
        await cluster.commit("followers", {first: 0, second: 17})
        found = await cluster.committed("followers", [first, second, third])
        assert found == {first: 0, second: 17}
        await cluster.commit("followers", {})

    in_cluster(settings_for(broker), use)


def test_a_batch_that_is_refused_says_why(broker):
    broker.create_topic("strict", 1)
    partition = TopicPartition("strict", 0)

    async def use(cluster: Cluster) -> None:
        broken = batch_of(b"a")
        broken[-1] ^= 1
        made = await cluster.produce({partition: broken}, acks=-1, timeout_ms=10_000)
        assert made[partition].error_code == ErrorCode.CORRUPT_MESSAGE
        unheard = await cluster.produce({partition: batch_of(b"b")}, acks=0, timeout_ms=10_000)
        assert unheard[partition].base_offset == -1
        assert await write(cluster, partition, b"c") == 1

    in_cluster(settings_for(broker), use)


def test_two_producers_have_two_ids(broker):
    async def use(cluster: Cluster) -> None:
        assert await cluster.init_producer() != await cluster.init_producer()

    in_cluster(settings_for(broker), use)


def test_a_range_is_read_whole_in_small_fetches_and_ends_at_its_end(broker):
    broker.create_topic("ranged", 1)
    partition = TopicPartition("ranged", 0)
    written = [f"{at:05}".encode() * 20 for at in range(300)]

    async def fill(cluster: Cluster) -> None:
        for at in range(0, 300, 3):
            await write(cluster, partition, *written[at : at + 3])

    with Blocking(settings_for(broker)) as client:
        client.run(fill, RUN_S)
        for start, end, fetch_bytes in [(0, 300, 1), (7, 299, 2000), (0, 300, 1 << 20), (5, 5, 1)]:
            fetches = read_range(client, partition, start, end, fetch_bytes=fetch_bytes)
            assert values_of(fetches, start)[: end - start] == written[start:end]
        # No more is asked for once the end is there.
        assert len(list(read_range(client, partition, 0, 2, fetch_bytes=1))) == 1


def test_the_end_of_a_range_may_come_later_than_its_reader(broker):
    broker.create_topic("awaited", 1)
    partition = TopicPartition("awaited", 0)
    with Blocking(settings_for(broker)) as client:
        client.run(lambda cluster: write(cluster, partition, b"1"), RUN_S)
        fetches = read_range(client, partition, 0, 2)
        assert len(values_of(iter([next(fetches)]))) == 1
        client.run(lambda cluster: write(cluster, partition, b"2"), RUN_S)
        assert values_of(fetches) == [b"2"]


def test_a_log_that_ends_before_the_range_does_is_told_with_its_numbers(broker):
    broker.create_topic("short", 1)
    partition = TopicPartition("short", 0)
    with Blocking(settings_for(broker)) as client:
        client.run(lambda cluster: write(cluster, partition, b"1", b"2"), RUN_S)
        with pytest.raises(OffsetOutOfRange) as caught:
            list(read_range(client, partition, 0, 9, patience_s=0.3))
        assert str(caught.value) == "short-0: offset 2 is wanted, available are 0 to 2"
        with pytest.raises(OffsetOutOfRange, match="offset 5 is wanted, available are 0 to 2"):
            list(read_range(client, partition, 5, 9))


def test_retention_that_overtakes_a_reader_is_told_with_its_numbers(broker):
    broker.create_topic("overtaken", 1, {"segment.bytes": 1 << 20, "retention.bytes": 1})
    partition = TopicPartition("overtaken", 0)

    async def first_offset(cluster: Cluster) -> int:
        return (await cluster.list_offsets({partition: EARLIEST}))[partition].offset

    with Blocking(settings_for(broker)) as client:
        for _ in range(3):
            client.run(lambda cluster: write(cluster, partition, bytes(700_000)), RUN_S)
        until(lambda: client.run(first_offset, RUN_S) > 0, "nothing was deleted")
        found = client.run(first_offset, RUN_S)
        with pytest.raises(OffsetOutOfRange) as caught:
            list(read_range(client, partition, 0, 3))
        assert (caught.value.offset, caught.value.log_start) == (0, found)
        assert caught.value.high_watermark == 3


def test_a_value_larger_than_the_fetch_is_read(broker):
    broker.create_topic("large", 1, {"max.message.bytes": 12_000_000})
    partition = TopicPartition("large", 0)
    value = os.urandom(10_000_000)
    with Blocking(settings_for(broker)) as client:
        client.run(lambda cluster: write(cluster, partition, value), RUN_S)
        assert values_of(read_range(client, partition, 0, 1, fetch_bytes=1000)) == [value]


def test_a_reader_that_stops_early_leaves_the_client_usable(broker):
    broker.create_topic("left", 1)
    partition = TopicPartition("left", 0)
    with Blocking(settings_for(broker)) as client:
        for value in (b"1", b"2", b"3"):
            client.run(lambda cluster, value=value: write(cluster, partition, value), RUN_S)
        # The end is not there yet: the fetch ahead of the last batch would wait for it.
        fetches = read_range(client, partition, 0, 4)
        next(fetches)
        fetches.close()
        assert client.is_idle
        assert values_of(read_range(client, partition, 0, 3)) == [b"1", b"2", b"3"]
        assert client.is_idle


def test_compacted_gaps_are_passed_over():
    """Each round reads all there is: it ends, with fewer records than offsets."""
    settings = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.01}
    with Broker(settings) as broker:
        configs = {"cleanup.policy": "compact", "segment.bytes": 1500}
        broker.create_topic("gaps", 1, configs)
        partition = TopicPartition("gaps", 0)
        with Blocking(settings_for(broker)) as client:

            def offsets() -> list[int]:
                client.run(lambda cluster: write(cluster, partition, b"x"), RUN_S)
                found = client.run(lambda cluster: cluster.list_offsets({partition: LATEST}), RUN_S)
                fetches = read_range(client, partition, 0, found[partition].offset, fetch_bytes=1)
                return [
                    record.offset
                    for fetched in fetches
                    for at, _ in headers_in(fetched.records)
                    for record in decode_records(fetched.records, at)
                ]

            until(lambda: len(offsets()) < offsets()[-1], "nothing was compacted")


def test_a_range_goes_on_after_kill_minus_nine_of_the_broker():
    with Broker() as broker:
        broker.create_topic("crashed", 1)
        partition = TopicPartition("crashed", 0)
        written = [f"{at:04}".encode() for at in range(60)]
        with Blocking(settings_for(broker)) as client:
            for value in written:
                client.run(lambda cluster, value=value: write(cluster, partition, value), RUN_S)
            read: list[bytes | None] = []
            for at, fetched in enumerate(read_range(client, partition, 0, 60, fetch_bytes=1)):
                read += values_of(iter([fetched]))
                if at == 20:
                    broker.kill()
                    threading.Thread(target=broker.start).start()
            assert read == written


def test_commits_and_offsets_go_on_after_kill_minus_nine_of_the_broker():
    with Broker() as broker:
        broker.create_topic("crashed", 1)
        partition = TopicPartition("crashed", 0)
        with Blocking(settings_for(broker)) as client:
            client.run(lambda cluster: cluster.commit("g", {partition: 5}), RUN_S)
            broker.kill()
            waiting = client.submit(lambda cluster: cluster.committed("g", [partition]))
            also = client.submit(lambda cluster: cluster.list_offsets({partition: LATEST}))
            broker.start()
            assert waiting.result(RUN_S) == {partition: 5}
            assert also.result(RUN_S)[partition].offset == 0


def test_a_broker_that_stays_away_is_given_up_with_its_address():
    with Broker() as broker:
        broker.create_topic("gone", 1)
        partition = TopicPartition("gone", 0)
        with Blocking(settings_for(broker, retry_timeout_s=0.5)) as client:
            client.run(lambda cluster: write(cluster, partition, b"1"), RUN_S)
            broker.kill()
            with pytest.raises(GaveUp) as caught:
                list(read_range(client, partition, 0, 1))
            assert broker.bootstrap in str(caught.value)
            assert "reading gone-0 at 0" in str(caught.value)


def test_a_broker_that_hangs_is_told_from_one_that_is_gone():
    with Broker() as broker:
        settings = settings_for(broker, request_timeout_s=0.3, retry_timeout_s=0.5)
        with Blocking(settings) as client:
            client.run(lambda cluster: cluster.topics(), RUN_S)
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(GaveUp) as caught:
                    client.run(lambda cluster: cluster.topics(), RUN_S)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            assert broker.bootstrap in str(caught.value)
            assert "has not answered" in str(caught.value)


def test_tls_to_a_plaintext_listener_is_one_line_about_tls(broker):
    settings = ClientSettings((broker.bootstrap,), security=Security("SSL"))
    with Blocking(settings) as client, pytest.raises(NotTrusted) as caught:
        client.run(lambda cluster: cluster.topics(), RUN_S)
    assert str(caught.value).startswith(f"{broker.bootstrap}: no TLS with it")


def test_a_login_that_the_broker_does_not_have_is_one_line(broker):
    security = Security("SASL_PLAINTEXT", "PLAIN", "u", "p")
    settings = ClientSettings((broker.bootstrap,), security=security)
    with Blocking(settings) as client, pytest.raises(ClientFailed, match="SaslHandshake"):
        client.run(lambda cluster: cluster.topics(), RUN_S)


# ------------------------------------------------------------------------- threads and processes


def test_one_client_is_shared_for_each_settings_until_it_is_closed(broker):
    settings = settings_for(broker)
    client = shared(settings)
    assert shared(ClientSettings((broker.bootstrap,))) is client
    assert shared(settings_for(broker, request_timeout_s=7.0)) is not client
    client.run(lambda cluster: cluster.topics(), RUN_S)
    client.close()
    with pytest.raises(ClientFailed, match="closed"):
        client.run(lambda cluster: cluster.topics(), RUN_S)
    again = shared(settings)
    assert again is not client
    assert again.run(lambda cluster: cluster.topics(), RUN_S) is not None


def test_whoever_waits_while_the_client_is_closed_hears_of_it(broker):
    broker.create_topic("closing", 1)
    client = Blocking(settings_for(broker))
    partition = TopicPartition("closing", 0)
    client.run(lambda cluster: cluster.topics(), RUN_S)
    waiting = client.submit(
        lambda cluster: cluster.fetch(partition, 0, max_bytes=1000, max_wait_ms=20_000)
    )
    idling = client.submit(lambda _: asyncio.Event().wait())
    client.close()
    for future in (waiting, idling):
        with pytest.raises(ClientFailed, match="closed"):
            wait_for(future, RUN_S)


def test_a_question_has_a_deadline_of_its_own(broker):
    async def never(_: Cluster) -> None:
        await asyncio.Event().wait()

    with Blocking(settings_for(broker)) as client:
        with pytest.raises(NoAnswer, match=r"127\.0\.0\.1:\d+: no answer in 0\.1 s"):
            client.run(never, 0.1)
        until(lambda: client.is_idle, "the question is still running")


def test_a_fork_has_its_own_client_and_leaves_the_parents_alone(broker):
    """As PySpark's daemon does it: fork, work, `os._exit`."""
    script = f"""
import gc, os, sys
from ottla.client.blocking import shared
from ottla.client.failures import ClientFailed
from ottla.client.settings import ClientSettings
settings = ClientSettings(({broker.bootstrap!r},))
parents = shared(settings)
before = parents.run(lambda cluster: cluster.topics(), {RUN_S})
for _ in range(3):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mine = shared(settings)
            assert mine is not parents
            assert mine.run(lambda cluster: cluster.topics(), {RUN_S}) == before
            try:
                parents.run(lambda cluster: cluster.topics(), {RUN_S})
            except ClientFailed:
                code = 0
            parents.close()
            del parents
            gc.collect()
            mine.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert parents.run(lambda cluster: cluster.topics(), {RUN_S}) == before
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_process_with_an_open_client_ends_at_once_and_silently(broker):
    script = f"""
import logging
from ottla.client.blocking import shared
from ottla.client.settings import ClientSettings
# On a busy machine asyncio complains of slowness, which is not what this is about.
logging.getLogger("asyncio").addFilter(lambda line: not line.msg.startswith("Executing "))
client = shared(ClientSettings(({broker.bootstrap!r},)))
client.run(lambda cluster: cluster.topics(), {RUN_S})
client.submit(lambda cluster: cluster.fetch(("nowhere", 0), 0, max_bytes=1))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_wrong_file_of_certificates_is_told_by_its_path(broker, tmp_path):
    security = Security("SSL", ca_path=str(tmp_path / "absent.pem"))
    settings = ClientSettings((broker.bootstrap,), security=security)
    with Blocking(settings) as client, pytest.raises(BadSetting, match=r"absent\.pem"):
        client.run(lambda cluster: cluster.topics(), RUN_S)
    gc.collect()
