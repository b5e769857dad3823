"""Batches that hold much are opened beside the loop, within bounds, and keep their places."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.broker.network.router import ApiKey
from ottla.broker.storage.opening import Opening
from ottla.broker.threads import RealThreads
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ErrorCode
from ottla.wire.codec import decode
from ottla.wire.compression import Compression
from ottla.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.wire.records import OPENED_BATCH_BYTES_MAX, Record, encode_batch
from ottla.wire.scanning import (
    KEYLESS_NAMED_MAX,
    OPENED_RECORDS_MAX,
    QUICK_RECORDS_MAX,
    STEP_RECORDS,
)
from records_kit import NOW_MS, batch, forged
from unit.broker.test_one_batch import Framed, Node, StallingDisk, a_produce

MANY = QUICK_RECORDS_MAX + 1
BOTH_WAYS = pytest.mark.parametrize("is_short", [True, False], ids=["short", "general"])


class HeldOpening(Opening):
    """Its searches stop at their first pause until `go`; `has_begun` when one is there."""

    def __init__(self) -> None:
        super().__init__(RealThreads(), self._hold)
        self.loop = asyncio.get_running_loop()
        self.has_begun = asyncio.Event()
        self.go = threading.Event()
        self.threads: set[threading.Thread] = set()
        self.pauses = 0

    def _hold(self) -> None:
        self.threads.add(threading.current_thread())
        self.pauses += 1
        self.loop.call_soon_threadsafe(self.has_begun.set)
        assert self.go.wait(20)

    def close(self) -> None:
        self.go.set()
        super().close()


def live(story: Callable[[Node, HeldOpening], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        opening = HeldOpening()
        node = Node(opening=opening, **({"is_short": True} | options))
        try:
            async with asyncio.timeout(20):
                await story(node, opening)
        finally:
            opening.go.set()
            await node.stop()

    asyncio.run(run())


def sequenced(first: int, count: int) -> bytearray:
    values = [b""] * count
    return batch(*values, producer_id=7, producer_epoch=0, base_sequence=first)


def keyed(data: bytearray, correlation_id: int, index: int = 0, **options: Any) -> bytes:
    version = options.pop("version", 12)
    return Framed(a_produce(data, "keyed", index=index, **options), version).frame(correlation_id)


async def replies(node: Node, client: int, count: int) -> list[PartitionProduceResponse]:
    """So many of them, in the order of their requests."""
    _, wire = node.clients[client]
    while True:
        found, position = [], 0
        while position < len(wire.sent):
            (size, _) = struct.unpack_from(">ii", wire.sent, position)
            body = bytes(wire.sent[position + 9 : position + 4 + size])
            found.append(decode(ProduceResponse, body, 12).responses[0].partition_responses[0])
            position += 4 + size
        if len(found) >= count:
            return found
        wire.has_sent.clear()
        await wire.has_sent.wait()


def end_of(node: Node, topic: str = "keyed", index: int = 0) -> int:
    return node.partitions.topics[topic][index].end_offset


def test_others_are_answered_while_a_large_batch_is_looked_into() -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        node.receive(0, keyed(sequenced(0, MANY), 1))
        await opening.has_begun.wait()
        node.receive(1, keyed(batch(b"a"), 1, index=1))
        (answer,) = await replies(node, 1, 1)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert not node.clients[0][1].sent
        assert end_of(node) == 0
        opening.go.set()
        (answer,) = await replies(node, 0, 1)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert threading.current_thread() not in opening.threads

    live(story)


@BOTH_WAYS
def test_batches_in_flight_keep_their_order(is_short: bool) -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        node.receive(0, keyed(sequenced(0, MANY), 1) + keyed(sequenced(MANY, 1), 2))
        await opening.has_begun.wait()
        node.receive(0, keyed(sequenced(MANY + 1, 2), 3))
        opening.go.set()
        answers = await replies(node, 0, 3)
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [
            (0, 0),
            (0, MANY),
            (0, MANY + 1),
        ]

    live(story, is_short=is_short)


@BOTH_WAYS
def test_the_next_request_waits_for_the_place_in_the_log_and_not_for_the_disk(
    is_short: bool,
) -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        opening.go.set()
        large, small = (keyed(sequenced(*each), 1, acks=-1) for each in ((0, MANY), (MANY, 1)))
        node.receive(0, large + small)
        while end_of(node) < MANY + 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not node.clients[0][1].sent
        disk.go.set()
        answers = await replies(node, 0, 2)
        assert [answer.base_offset for answer in answers] == [0, MANY]

    disk = StallingDisk()
    try:
        live(story, is_short=is_short, disk=disk)
    finally:
        disk.go.set()


def test_who_is_gone_meanwhile_leaves_nothing_open() -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        node.receive(0, keyed(batch(*[b""] * MANY), 1) + keyed(batch(b"a"), 2))
        await opening.has_begun.wait()
        node.clients[0][0].connection_lost(None)
        opening.go.set()
        while end_of(node) < MANY:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await node.settle()
        assert node.listener.bytes_in_flight == 0
        assert end_of(node) == MANY

    live(story)


def test_a_search_that_takes_too_long_is_refused_and_not_appended() -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        node.receive(0, keyed(batch(*[b""] * MANY), 1, timeout_ms=1))
        (answer,) = await replies(node, 0, 1)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        opening.go.set()
        node.receive(0, keyed(batch(b"a"), 2))
        _, answer = await replies(node, 0, 2)
        assert answer.base_offset == 0

    live(story)


def test_a_topic_that_is_compacted_from_now_on_takes_no_batch_unseen() -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        both = [
            TopicProduceData("keyed", [PartitionProduceData(0, batch(*[b""] * MANY))]),
            TopicProduceData("synced", [PartitionProduceData(0, batch(*[b""] * MANY, key=None))]),
        ]
        node.receive(0, Framed(ProduceRequest(None, 1, 20_000, both), 12).frame(1))
        await opening.has_begun.wait()
        config = TopicConfig.resolve(BrokerConfig(), {"cleanup.policy": "compact"})
        node.partitions.topics["synced"][0].configure(config)
        opening.go.set()
        await node.clients[0][1].has_sent.wait()
        assert end_of(node, "keyed") == MANY
        assert end_of(node, "synced") == 0
        # One after each step, also in the second batch.
        assert opening.pauses == 2 * -(-MANY // STEP_RECORDS)

    live(story)


# ---------------------------------------------------------------------------------- what is wrong


def mixed(count: int, keyless: set[int], **options: Any) -> bytearray:
    return encode_batch(
        [Record(at, NOW_MS, None if at in keyless else b"k", b"v") for at in range(count)],
        **options,
    )


@BOTH_WAYS
@pytest.mark.parametrize("count", [100, MANY], ids=["few", "many"])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_messages_without_a_key_are_named(is_short: bool, count: int, codec: Compression) -> None:
    keyless = set(range(3, 100, 10))

    async def story(node: Node, opening: HeldOpening) -> None:
        opening.go.set()
        node.receive(0, keyed(mixed(count, keyless, compression=codec), 1))
        (answer,) = await replies(node, 0, 1)
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert answer.base_offset == -1
        assert [each.batch_index for each in answer.record_errors] == sorted(keyless)
        assert {each.batch_index_error_message for each in answer.record_errors} == {
            "keyed is compacted: every message needs a key"
        }
        assert answer.error_message == (
            f"keyed is compacted: every message needs a key, 10 of {count} have none"
        )
        assert end_of(node) == 0

    live(story, is_short=is_short)


@BOTH_WAYS
@pytest.mark.parametrize("version", [7, 8, 9])
def test_versions_before_8_are_told_the_code_alone(is_short: bool, version: int) -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        node.receive(0, keyed(mixed(3, {1}), 1, version=version))
        _, wire = node.clients[0]
        at = 8 + (version >= 9)
        response = decode(ProduceResponse, bytes(wire.sent[at:]), version)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in answer.record_errors] == [1] * (version >= 8)
        assert (answer.error_message is None) == (version < 8)

    live(story, is_short=is_short)


def test_so_many_messages_are_named_and_no_more() -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        opening.go.set()
        count = 3 * KEYLESS_NAMED_MAX
        node.receive(0, keyed(mixed(count, set(range(count))), 1))
        (answer,) = await replies(node, 0, 1)
        assert [each.batch_index for each in answer.record_errors] == [*range(KEYLESS_NAMED_MAX)]
        assert f"{count} of {count} have none" in (answer.error_message or "")

    live(story)


TINY = b"\x0e\0\0\0\x02k\x01\0"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (forged(TINY * 10, OPENED_RECORDS_MAX + 1, Compression.ZSTD), ErrorCode.MESSAGE_TOO_LARGE),
        (forged(TINY * 10, OPENED_RECORDS_MAX + 1), ErrorCode.MESSAGE_TOO_LARGE),
        (
            forged(bytes(OPENED_BATCH_BYTES_MAX + 1), 1, Compression.ZSTD),
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
        (forged(TINY * 10, 11, Compression.LZ4), ErrorCode.INVALID_RECORD),
        (forged(TINY * 10, 9, Compression.GZIP), ErrorCode.INVALID_RECORD),
        (forged(TINY * 10, OPENED_RECORDS_MAX, Compression.SNAPPY), ErrorCode.INVALID_RECORD),
        (forged(b"\x80" * 100, MANY), ErrorCode.INVALID_RECORD),
        (forged(b"no frame of zstd", 1, is_packed=Compression.ZSTD), ErrorCode.INVALID_RECORD),
    ],
    ids=["count", "plain", "bytes", "short", "long", "far too short", "endless", "codec"],
)
@BOTH_WAYS
def test_what_a_batch_says_is_not_believed(
    data: bytearray, code: ErrorCode, is_short: bool
) -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        opening.go.set()
        # Through the connection's own door: the shared buffer is too small for some.
        connection, _ = node.clients[0]
        connection._begin(bytearray(keyed(data, 1)[4:]))
        (answer,) = await replies(node, 0, 1)
        assert answer.error_code == code
        assert not answer.record_errors
        assert end_of(node) == 0

    live(story, is_short=is_short)


def test_all_records_of_a_request_count_together() -> None:
    """A thousand partitions with a few records each are as much as one with many."""

    async def story(node: Node, opening: HeldOpening) -> None:
        half = QUICK_RECORDS_MAX // 2 + 1
        parts = [PartitionProduceData(index, batch(*[b""] * half)) for index in range(2)]
        request = ProduceRequest(None, 1, 20_000, [TopicProduceData("keyed", parts)])
        node.receive(0, Framed(request, 12).frame(1))
        await opening.has_begun.wait()
        opening.go.set()
        await node.clients[0][1].has_sent.wait()
        assert [end_of(node, index=index) for index in range(2)] == [half, half]

    live(story)


def test_only_one_search_runs_at_a_time() -> None:
    """Also with those of look-ups, which come from threads of their own."""
    running, most = 0, 0

    def steps() -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(50):
            yield
        running -= 1

    opening = Opening(RealThreads())
    threads = [threading.Thread(target=opening.go_through, args=(steps(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    opening.close()
    assert (running, most) == (0, 1)


def test_the_counts_are_those_of_one_request() -> None:
    async def story(node: Node, opening: HeldOpening) -> None:
        opening.go.set()
        node.receive(0, keyed(batch(*[b""] * MANY), 1))
        await replies(node, 0, 1)
        assert node.metrics.api(ApiKey.PRODUCE, "Produce").count == 1
        assert node.metrics.topic("keyed").produce_requests == 1
        assert node.metrics.topic("keyed").messages_in == MANY

    live(story)
