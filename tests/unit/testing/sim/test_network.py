"""Simulated TCP: what it promises, and what becomes of it in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from ottla.testing.sim.clock import MachineClock
from ottla.testing.sim.loop import ProcessLoop
from ottla.testing.sim.network import Host, Network
from ottla.testing.sim.scheduler import Scheduler

PORT = 9092
LARGE = 3_000_000


class Peer(asyncio.BufferedProtocol):
    """Remembers what happens to it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = b""
        self.lost: list[Exception | None] = []
        self.has_eof = False
        self.is_writing_paused = False
        self.pauses = 0
        self._buffer = bytearray(1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def eof_received(self) -> bool:
        self.has_eof = True
        return False

    def pause_writing(self) -> None:
        self.is_writing_paused = True
        self.pauses += 1

    def resume_writing(self) -> None:
        self.is_writing_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Bench:
    """A client and a server, which accepts what comes."""

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler(Random(seed))
        self.network = Network(self.scheduler, Random(seed))
        self.client = self.process("client", "10.0.0.1")
        self.server = self.process("server", "10.0.0.2")
        self.accepted: list[Peer] = []
        self.run(self.serve())

    def process(self, name: str, ip: str) -> ProcessLoop:
        known = self.network.hosts.get(name)
        clock = MachineClock(self.scheduler)
        loop = ProcessLoop(  # type: ignore[abstract]
            name, self.scheduler, clock, Random(self.random.random()), self.note
        )
        loop.host = known or self.network.add_host(name, ip)
        return loop

    @staticmethod
    def note(context: dict[str, Any]) -> None:
        raise AssertionError(context)

    @property
    def there(self) -> Host:
        return self.network.hosts["server"]

    async def serve(self) -> None:
        listener = await self.there.bind(self.server, self.accept, PORT, 100)
        listener.claim()
        await listener.open()

    def accept(self) -> Peer:
        self.accepted.append(Peer())
        return self.accepted[-1]

    async def connect(self) -> Peer:
        _, peer = await self.client.create_connection(Peer, "10.0.0.2", PORT)
        assert isinstance(peer, Peer)
        return peer

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        ended: list[asyncio.Task[Any]] = []
        self.client.spawn(work, ended.append)
        assert self.scheduler.run(lambda: bool(ended), self.scheduler.now_s + 1000)
        return ended[0].result()

    def pass_time(self, seconds: float = 1.0) -> None:
        self.scheduler.run(lambda: False, self.scheduler.now_s + seconds)

    def connected(self) -> tuple[Peer, Peer]:
        here = self.run(self.connect())
        self.pass_time()
        return here, self.accepted[-1]


def test_bytes_arrive_whole_and_in_order_both_ways() -> None:
    bench = Bench()
    here, there = bench.connected()
    sent = [b"%d," % number for number in range(2000)]
    for each in sent:
        here.transport.write(each)
        there.transport.writelines([each, b"!"])
        if len(each) % 3:
            bench.pass_time(0.0001)
    bench.pass_time()
    assert there.received == b"".join(sent)
    assert here.received == b"".join(each + b"!" for each in sent)


def test_who_does_not_read_makes_the_writer_pause() -> None:
    bench = Bench()
    here, there = bench.connected()
    there.transport.pause_reading()
    here.transport.write(bytes(LARGE))
    assert here.is_writing_paused
    bench.pass_time()
    assert here.is_writing_paused
    assert not there.received
    assert here.transport.get_write_buffer_size() > LARGE // 2
    there.transport.resume_reading()
    bench.pass_time(60)
    assert there.received == bytes(LARGE)
    assert not here.is_writing_paused
    assert here.pauses == 1


def test_a_close_flushes_first_and_the_other_end_reads_all() -> None:
    bench = Bench()
    here, there = bench.connected()
    here.transport.write(bytes(LARGE))
    here.transport.close()
    bench.pass_time(60)
    assert there.received == bytes(LARGE)
    assert there.has_eof
    assert here.lost == there.lost == [None]


def test_nobody_listens_there() -> None:
    bench = Bench()
    bench.there.listeners[PORT].close()
    with pytest.raises(ConnectionRefusedError):
        bench.run(bench.connect())


def test_a_dead_process_is_noticed_at_once_and_refuses_connections() -> None:
    bench = Bench()
    here, there = bench.connected()
    there.transport.write(b"last words")
    bench.server.kill()
    bench.there.process_died(bench.server)
    bench.pass_time()
    assert here.received == b"last words"
    assert len(here.lost) == 1
    assert not there.lost
    with pytest.raises(ConnectionRefusedError):
        bench.run(bench.connect())


def test_a_machine_without_power_says_nothing_until_it_is_back() -> None:
    bench = Bench()
    here, _ = bench.connected()
    bench.server.kill()
    bench.there.power_off()
    here.transport.write(b"hello?")
    bench.pass_time(100)
    assert not here.lost
    bench.there.power_on()
    bench.pass_time()
    assert isinstance(here.lost[0], ConnectionResetError)


def test_a_half_open_connection_is_found_out_by_the_next_write() -> None:
    bench = Bench()
    here, _ = bench.connected()
    bench.server.kill()
    bench.there.power_off()
    bench.there.power_on()
    bench.pass_time(100)
    assert not here.lost
    here.transport.write(b"hello?")
    bench.pass_time()
    assert isinstance(here.lost[0], ConnectionResetError)


def test_what_is_sent_into_a_cut_arrives_when_it_is_healed() -> None:
    bench = Bench()
    here, there = bench.connected()
    bench.network.cut("client", "server")
    here.transport.write(b"1")
    there.transport.write(b"2")
    bench.pass_time(50)
    assert (there.received, here.received) == (b"", b"")
    bench.network.heal()
    here.transport.write(b"3")
    bench.pass_time()
    assert (there.received, here.received) == (b"13", b"2")


def test_a_cut_of_one_direction_leaves_the_other() -> None:
    bench = Bench()
    here, there = bench.connected()
    bench.network.cut_one_way("client", "server")
    here.transport.write(b"1")
    there.transport.write(b"2")
    bench.pass_time(50)
    assert (there.received, here.received) == (b"", b"2")


def test_connecting_through_a_cut_waits_and_can_be_given_up() -> None:
    bench = Bench()
    bench.network.cut_one_way("server", "client")

    async def give_up() -> None:
        async with asyncio.timeout(5):
            await bench.connect()

    with pytest.raises(TimeoutError):
        bench.run(give_up())
    with pytest.raises(OSError, match="timed out"):
        bench.run(bench.connect())
    bench.network.heal()
    bench.run(bench.connect())
    bench.pass_time(100)
    assert len(bench.accepted) == 1


def test_a_paused_process_takes_connections_and_bytes_and_answers_none() -> None:
    bench = Bench()
    bench.server.pause()
    here = bench.run(bench.connect())
    here.transport.write(b"hello")
    bench.pass_time(10)
    assert not bench.accepted
    bench.server.resume()
    bench.pass_time()
    assert bench.accepted[0].received == b"hello"


def test_a_slow_link_takes_its_time() -> None:
    bench = Bench()
    here, there = bench.connected()
    bench.network.slow("client", "server", 3.0)
    here.transport.write(b"1")
    bench.pass_time(2.9)
    assert not there.received
    bench.pass_time(0.2)
    assert there.received == b"1"


def test_on_a_lossy_link_everything_arrives_late_and_in_order() -> None:
    bench = Bench()
    here, there = bench.connected()
    bench.network.lossy("client", "server", 0.5)
    sent = [b"%d," % number for number in range(100)]
    for each in sent:
        here.transport.write(each)
    bench.pass_time(0.01)
    assert len(there.received) < len(b"".join(sent))
    bench.pass_time(60)
    assert there.received == b"".join(sent)


def test_a_reset_may_come_in_the_middle_of_a_frame() -> None:
    torn = 0
    for seed in range(20):
        bench = Bench(seed)
        here, there = bench.connected()
        here.transport.write(bytes(100))
        bench.network.reset("client", "server")
        bench.pass_time()
        assert isinstance(here.lost[0], ConnectionResetError)
        assert isinstance(there.lost[0], ConnectionResetError)
        torn += 0 < len(there.received) < 100
    assert torn


def test_an_abort_drops_what_was_not_handed_over() -> None:
    bench = Bench()
    here, there = bench.connected()
    there.transport.pause_reading()
    here.transport.write(bytes(LARGE))
    here.transport.abort()
    there.transport.resume_reading()
    bench.pass_time(60)
    assert 0 < len(there.received) < LARGE
    assert len(there.lost) == len(here.lost) == 1


def test_streams_of_asyncio_work() -> None:
    bench = Bench()

    async def talk() -> bytes:
        reader, writer = await asyncio.open_connection("10.0.0.2", PORT)
        writer.write(b"hello")
        await writer.drain()
        while not bench.accepted or not bench.accepted[-1].received:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        bench.accepted[-1].transport.write(b"line\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    assert bench.run(talk()) == b"line\n"
    bench.pass_time()
    assert bench.accepted[-1].has_eof
