"""An acknowledged message is there again after kill -9, in order, once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from ottla.testing import Broker
from raw_client import RawClient
from records_kit import batch, fetch, fetch_request, produce, produce_request, values_in

ROUNDS = 6
PRODUCERS = 3


@dataclass
class Writer:
    """An idempotent producer that pipelines, retries what was not acknowledged, and remembers."""

    number: int
    next_sequence: int = 0
    acknowledged: list[bytes] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return f"kills-{self.number % 2}"

    def value(self, sequence: int) -> bytes:
        return f"{self.number}:{sequence}".encode()

    def run(self, bootstrap: str, enough: threading.Event) -> None:
        """Writes until the broker goes away."""
        try:
            with RawClient(bootstrap) as client:
                while True:
                    self._write_some(client)
                    if self.next_sequence > 30:
                        enough.set()
        except (OSError, ConnectionError):
            return

    def _write_some(self, client: RawClient) -> None:
        sequences = range(self.next_sequence, self.next_sequence + 4)
        for sequence in sequences:
            data = batch(
                self.value(sequence),
                producer_id=100 + self.number,
                producer_epoch=0,
                base_sequence=sequence,
            )
            client.send(produce_request(self.topic, {0: data}), 12)
        for sequence in sequences:
            answer = client.receive().responses[0].partition_responses[0]
            assert answer.error_code == 0, answer.error_message
            self.acknowledged.append(self.value(sequence))
            self.next_sequence = sequence + 1


@pytest.mark.seconds(170)
def test_no_acknowledged_message_is_lost_by_kill_9(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory(log_segment_bytes=4096)
    writers = [Writer(number) for number in range(PRODUCERS)]
    for name in ("kills-0", "kills-1"):
        broker.create_topic(name)
    for round_number in range(ROUNDS):
        target = [writer.next_sequence + 20 * (round_number + 1) for writer in writers]
        _write_and_kill(broker, writers, target)
        broker.start()
        _check(broker, writers)


def _write_and_kill(broker: Broker, writers: list[Writer], target: list[int]) -> None:
    enough = threading.Event()
    threads = [
        threading.Thread(target=writer.run, args=(broker.bootstrap, enough)) for writer in writers
    ]
    for thread in threads:
        thread.start()
    assert enough.wait(30)
    while all(writer.next_sequence < goal for writer, goal in zip(writers, target, strict=True)):
        assert any(thread.is_alive() for thread in threads)
    broker.kill()
    for thread in threads:
        thread.join(30)


def _check(broker: Broker, writers: list[Writer]) -> None:
    found: dict[str, list[bytes | None]] = {}
    with RawClient(broker.bootstrap) as client:
        for topic in {writer.topic for writer in writers}:
            found[topic] = _read_all(client, topic)
    for writer in writers:
        prefix = f"{writer.number}:".encode()
        mine = [value for value in found[writer.topic] if value and value.startswith(prefix)]
        assert mine[: len(writer.acknowledged)] == writer.acknowledged
        assert len(set(mine)) == len(mine), "a retried batch is there twice"
        # What was written but not acknowledged before the kill is a duplicate when sent again.
        assert len(mine) - len(writer.acknowledged) <= 4


def _read_all(client: RawClient, topic: str) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset = 0
    while True:
        reply = client.ask(fetch_request(topic, {0: offset}, max_wait_ms=0), 12)
        answer = reply.responses[0].partitions[0]
        assert answer.error_code == 0
        if offset == answer.high_watermark:
            return values
        read = values_in(answer.records)
        values += read
        offset += len(read)


def test_a_clean_stop_needs_no_recovery(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("clean")
    with RawClient(broker.bootstrap) as client:
        quiet, *others = [
            client.send(produce_request("clean", {0: batch(b"v")}, acks=acks), 12)
            for acks in (0, 1, -1)
        ]
        client.expect_no_reply(quiet)
        assert len(others) == 2
        client.receive()
        client.receive()
    assert broker.stop() == 0
    logged = len(broker.log_text())
    broker.start()
    assert "recover" not in broker.log_text()[logged:].lower()
    with RawClient(broker.bootstrap) as client:
        assert values_in(fetch(client, "clean", 0).records) == [b"v"] * 3


def test_a_duplicate_is_known_after_a_restart(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("twice")
    data = batch(b"v", producer_id=5, producer_epoch=0, base_sequence=0)
    with RawClient(broker.bootstrap) as client:
        assert produce(client, "twice", data).base_offset == 0
    for end in (broker.stop, broker.kill):
        end()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert produce(client, "twice", data).base_offset == 0
            assert values_in(fetch(client, "twice", 0).records) == [b"v"]
