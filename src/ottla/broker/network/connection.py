"""One client connection: frames in, replies out in request order, bounded in both directions.

Requests of a connection run one after the other, as clients expect. Only a produce lets the next
request begin before it is answered: it has its place in the log by then, and waits for the disk.

Frames that arrive whole are cut out of one read buffer that all connections share; a longer frame
gets a buffer of its own, which the kernel fills directly. It grows with what has arrived, until the
connection has sent a frame of that size before: then the next is not copied before it is written.
So an idle connection holds no buffer, and who only announces a large request holds a small one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections import deque
from collections.abc import Callable
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.deferred import Deferred
from ottla.broker.network.exchange import Exchange, RoutedExchange
from ottla.broker.network.router import CloseConnection, Later, Reply, Router
from ottla.broker.network.sockets import shut_socket
from ottla.broker.request import CONNECTION_NUMBER
from ottla.config.listeners import Address
from ottla.wire.codec import NotEncodable
from ottla.wire.one_batch import PRODUCE_KEY, ProduceShape
from ottla.wire.schema import Buffer, Message

if TYPE_CHECKING:
    from ottla.broker.counters import Metrics
    from ottla.config import BrokerConfig

logger = logging.getLogger(__name__)

READ_BUFFER_BYTES: Final = 64 * 1024
# Room for the beginning of a frame from somebody who has not sent a large one yet.
FRAME_FIRST_BYTES: Final = 4 * 1024
# The most that is given at once to somebody who has.
FRAME_EARNED_BYTES_MAX: Final = 4 * 1024 * 1024
# A connection that stops in the middle of a request is closed much sooner than an idle one.
FRAME_SILENCE_S_MAX: Final = 30.0
# The same while requests, whole and half, hold all the memory they may.
FRAME_SILENCE_FULL_S_MAX: Final = 3.0
PIPELINED_REQUESTS_MAX: Final = 512
_SIZE: Final = struct.Struct(">i")


class Limits:
    """The bounds that connections keep, each and together."""

    __slots__ = (
        "connection_bytes",
        "connections",
        "frame_bytes",
        "idle_s",
        "reply_bytes",
        "total_bytes",
        "total_reply_bytes",
        "unread_s",
    )

    def __init__(self, config: BrokerConfig) -> None:
        self.frame_bytes = config.socket_request_max_bytes
        self.connections = config.max_connections
        self.connection_bytes = config.connection_max_request_bytes
        self.total_bytes = _unlimited(config.queued_max_request_bytes)
        self.idle_s = _unlimited(config.connections_max_idle_ms) / 1000
        self.reply_bytes = config.connection_max_reply_bytes
        self.total_reply_bytes = config.replies_max_bytes
        self.unread_s = config.connection_write_timeout_ms / 1000


def _unlimited(value: int) -> float:
    """Kafka writes -1 for no limit."""
    return math.inf if value < 0 else value


class Outbox:
    """Holds replies back for a moment, so that each connection sends all of its own in one call."""

    def __init__(self) -> None:
        self.is_corked = False
        self._connections: list[Connection] = []

    def cork(self) -> None:
        self.is_corked = True

    def add(self, connection: Connection) -> None:
        self._connections.append(connection)

    def uncork(self) -> None:
        self.is_corked = False
        if self._connections:
            connections, self._connections = self._connections, []
            for connection in connections:
                connection.flush()


class Connections:
    """What all client connections share, over whichever listening socket they came."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        router: Router,
        limits: Limits,
        metrics: Metrics,
        outbox: Outbox,
    ) -> None:
        self.loop = loop
        self.router = router
        # Those of listeners that do not serve everything, by the listener's name.
        self.routers: dict[str, Router] = {}
        self.limits = limits
        self.metrics = metrics
        self.outbox = outbox
        self.read_buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        # Who is told what was remembered of a connection that is gone.
        self.on_lost: tuple[Callable[[dict[Any, Any]], None], ...] = ()
        # Told before the requests of a read are handled, where somebody has to know.
        self.before_requests: Callable[[], None] | None = None
        self.connections: dict[Connection, None] = {}
        # In the order in which connections came.
        self.numbers = count(1)
        self.bytes_in_flight = 0
        self.half_frame_bytes = 0
        self.is_stopping = False
        self.starved: dict[Connection, None] = {}
        self._unsent: dict[Connection, int] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def connection(self, name: str) -> Connection:
        """A new connection; `name` is that of the listening socket in `listeners`."""
        return Connection(self, name, self.routers.get(name, self.router))

    def start(self) -> None:
        self._sweep()

    def shut_sockets(self) -> None:
        """By another thread, while the loop stands still: what it finds later is their end."""
        for connection in tuple(self.connections):
            if connection._transport is not None:
                shut_socket(connection._transport)

    # ------------------------------------------------------------------------- bytes in flight

    @property
    def is_full(self) -> bool:
        return self.bytes_in_flight > self.limits.total_bytes

    @property
    def held_bytes(self) -> int:
        """What requests take of the memory: those in flight, and room for those still arriving."""
        return self.bytes_in_flight + self.half_frame_bytes

    def starve(self, connection: Connection) -> None:
        """All connections together hold too much: this one reads again when there is room."""
        self.starved[connection] = None

    def feed(self) -> None:
        """Lets the starved read again if there is room by now."""
        if not self.is_full:
            starved, self.starved = self.starved, {}
            for connection in starved:
                connection.resume()

    # ---------------------------------------------------------------------------- slow readers

    def stalled(self, connection: Connection, unsent_bytes: int) -> None:
        self._unsent[connection] = unsent_bytes
        if sum(self._unsent.values()) > self.limits.total_reply_bytes:
            slowest = next(iter(self._unsent))
            slowest.drop("replies that nobody reads fill the broker's memory")

    def flowing(self, connection: Connection) -> None:
        self._unsent.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self.starved.pop(connection, None)
        self._unsent.pop(connection, None)

    def _sweep(self) -> None:
        """Closes connections that have been silent, or have not read, for too long."""
        now = self.loop.time()
        period_s = min(10.0, self.limits.idle_s / 2, self.limits.unread_s / 2)
        for connection in tuple(self.connections):
            connection.check_time(now)
        self._sweeper = self.loop.call_later(period_s, self._sweep)

    async def stop(self, grace_s: float) -> None:
        """Lets running requests finish, then closes every connection."""
        self.is_stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        deadline = self.loop.time() + grace_s
        for connection in tuple(self.connections):
            connection.finish()
        while self.connections and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections):
            connection.drop("the broker stops")


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_bytes_in_flight",
        "_client_id",
        "_earned_bytes",
        "_filled",
        "_frame",
        "_is_closed",
        "_is_paused",
        "_is_waiting",
        "_last_active_s",
        "_leftover",
        "_memory",
        "_outgoing",
        "_port",
        "_router",
        "_shared",
        "_stalled_at_s",
        "_task",
        "_transport",
        "_wanted",
        "exchanges",
        "listener",
        "peer",
        "shape",
    )

    def __init__(self, shared: Connections, name: str, router: Router) -> None:
        self._shared = shared
        self.listener = name
        self._router = router
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        self._port = 0
        self._client_id: str | None = None
        self._leftover = b""
        self._frame: bytearray | None = None
        self._filled = 0
        self._wanted = 0
        self._earned_bytes = 0
        self._backlog: deque[bytearray] = deque()
        self.exchanges: deque[Exchange] = deque()
        self._bytes_in_flight = 0
        self._is_waiting = False
        self._is_paused = False
        self._is_closed = False
        self._stalled_at_s = 0.0
        self._last_active_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._memory: dict[Any, Any] = {CONNECTION_NUMBER: next(shared.numbers)}
        self._outgoing: list[Buffer] = []
        # That of the last produce request with a single batch; the next one most likely has it.
        self.shape: ProduceShape | None = None

    # ------------------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        shared = self._shared
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer, self._port = str(peer[0]), int(peer[1])
        self._last_active_s = shared.loop.time()
        shared.connections[self] = None
        self._transport.set_write_buffer_limits(high=shared.limits.reply_bytes)
        if len(shared.connections) > shared.limits.connections:
            shared.metrics.connections_refused += 1
            self.drop(f"max.connections={shared.limits.connections} is reached")
            return
        shared.metrics.connections_accepted += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        shared = self._shared
        shared.forget(self)
        if self._memory:
            for tell in shared.on_lost:
                tell(self._memory)
        for exchange in self.exchanges:
            exchange.abandon()
        self.exchanges.clear()
        self._backlog.clear()
        if self._frame is not None:
            self._take_frame()
        shared.bytes_in_flight -= self._bytes_in_flight
        self._bytes_in_flight = 0
        shared.feed()

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._stalled_at_s = self._shared.loop.time()
        self._shared.stalled(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stalled_at_s = 0.0
        self._shared.flowing(self)
        self._work_off_backlog()

    def eof_received(self) -> bool:
        return False

    def drop(self, reason: str) -> None:
        """Ends the connection at once, with one line in the log."""
        if not self._is_closed and self._transport is not None:
            who = "" if self._client_id is None else f" (client {self._client_id!r:.80})"
            logger.info(
                "connection from %s%s closed: %s",
                Address(self.peer, self._port),
                who,
                reason,
                extra={"peer": self.peer, "alike": (who, reason)},
            )
            self._is_closed = True
            self._shared.metrics.connections_dropped += 1
            self._transport.abort()

    def finish(self) -> None:
        """The broker stops: answer what runs, take nothing new, then close."""
        if self._transport is None or self._is_closed:
            return
        self._transport.pause_reading()
        self._backlog.clear()
        for exchange in self.exchanges:
            if exchange.is_parked:
                exchange.abandon()
                self._transport.close()
                return
        if not self.exchanges:
            self._transport.close()

    def check_time(self, now_s: float) -> None:
        limits = self._shared.limits
        if self._stalled_at_s:
            if now_s - self._stalled_at_s > limits.unread_s:
                self.drop(f"it has not read its replies for {limits.unread_s:.0f} s")
        elif self._frame is not None:
            is_crowded = self._shared.held_bytes > limits.total_bytes
            silence_s_max = FRAME_SILENCE_FULL_S_MAX if is_crowded else FRAME_SILENCE_S_MAX
            if now_s - self._last_active_s > silence_s_max and not self._is_paused:
                self.drop(f"silent in the middle of a request of {self._wanted} bytes")
        elif not self.exchanges and now_s - self._last_active_s > limits.idle_s:
            self.drop("idle for connections.max.idle.ms")

    # --------------------------------------------------------------------------------- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._shared.read_buffer
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        shared = self._shared
        self._last_active_s = shared.loop.time()
        if shared.before_requests is not None:
            shared.before_requests()
        shared.outbox.cork()
        try:
            if self._frame is not None:
                self._fill_frame(count)
            elif self._leftover:
                joined = self._leftover + bytes(shared.read_buffer[:count])
                self._leftover = b""
                self._cut_frames(memoryview(joined))
            else:
                self._cut_frames(shared.read_buffer[:count])
        finally:
            shared.outbox.uncork()

    def _cut_frames(self, data: memoryview) -> None:
        position, end = 0, len(data)
        while end - position >= 4 and not self._is_closed:
            (size,) = _SIZE.unpack_from(data, position)
            if not 0 < size <= self._shared.limits.frame_bytes:
                self.drop(
                    f"a frame of {size} bytes; socket.request.max.bytes is "
                    f"{self._shared.limits.frame_bytes}"
                )
                return
            position += 4
            if size > end - position:
                self._begin_frame(size, data[position:])
                return
            self._received(bytearray(data[position : position + size]))
            position += size
        self._leftover = bytes(data[position:])

    def _begin_frame(self, size: int, start: memoryview) -> None:
        shared = self._shared
        earned = self._earned_bytes if shared.held_bytes < shared.limits.total_bytes else 0
        self._wanted = size
        self._filled = len(start)
        self._frame = bytearray(min(size, max(FRAME_FIRST_BYTES, 2 * len(start), earned)))
        self._frame[: self._filled] = start
        shared.half_frame_bytes += len(self._frame)

    def _fill_frame(self, count: int) -> None:
        assert self._frame is not None
        self._filled += count
        if self._filled == self._wanted:
            self._earned_bytes = max(self._earned_bytes, min(self._wanted, FRAME_EARNED_BYTES_MAX))
            self._received(self._take_frame())
        elif self._filled == len(self._frame):
            grown = bytearray(min(self._wanted, 2 * len(self._frame)))
            grown[: self._filled] = self._take_frame()
            self._frame = grown
            self._shared.half_frame_bytes += len(grown)

    def _take_frame(self) -> bytearray:
        assert self._frame is not None
        frame, self._frame = self._frame, None
        self._shared.half_frame_bytes -= len(frame)
        return frame

    def _received(self, frame: bytearray) -> None:
        byte_count = len(frame)
        shared = self._shared
        limits = shared.limits
        shared.metrics.bytes_received += byte_count
        self._bytes_in_flight += byte_count
        shared.bytes_in_flight += byte_count
        if self._is_waiting or self._stalled_at_s or self._backlog:
            self._backlog.append(frame)
        else:
            self._begin(frame)
        if (
            self._bytes_in_flight > limits.connection_bytes
            or len(self.exchanges) + len(self._backlog) > PIPELINED_REQUESTS_MAX
            or shared.bytes_in_flight > limits.total_bytes
        ):
            self._pause()

    def _pause(self) -> None:
        if not self._is_paused and not self._is_closed and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
            if self._shared.is_full:
                self._shared.starve(self)

    def resume(self) -> None:
        """Reads again once what it holds is below its bounds."""
        shared = self._shared
        if (
            self._is_paused
            and not self._is_closed
            and self._transport is not None
            and self._bytes_in_flight <= shared.limits.connection_bytes // 2
            and len(self.exchanges) + len(self._backlog) <= PIPELINED_REQUESTS_MAX // 2
        ):
            if shared.is_full:
                shared.starve(self)
                return
            self._is_paused = False
            self._transport.resume_reading()

    # -------------------------------------------------------------------------------- handling

    def _begin(self, frame: bytearray) -> None:
        started_s = perf_counter()
        router = self._router
        try:
            produces = router.one_batch_produces
            if (
                produces is not None
                and frame.startswith(PRODUCE_KEY)
                and produces.begin(self, frame, started_s)
            ):
                return
            view = memoryview(frame)
            head, route = router.find(view)
            if self._client_id is None:
                self._client_id = head.client_id
            outcome = router.call(route, head, view, self.peer, self.listener, self._memory)
        except CloseConnection as error:
            self._client_id = self._client_id or error.client_id
            self.drop(str(error))
            return
        exchange = RoutedExchange(route, head, len(frame), started_s)
        if outcome is None or isinstance(outcome, Message):
            exchange.reply = outcome
            exchange.is_done = True
            if self.exchanges:
                self.exchanges.append(exchange)
            else:
                self._answer(exchange)
            return
        self.exchanges.append(exchange)
        if isinstance(outcome, Deferred):
            exchange.deferred = outcome
            if not outcome.pipelined:
                self._is_waiting = not outcome.is_resolved
            outcome.when_resolved(lambda reply: self._done(exchange, reply))
        else:
            self._is_waiting = True
            self._task = self._shared.loop.create_task(self._await(exchange, outcome))

    async def _await(self, exchange: RoutedExchange, outcome: Later) -> None:
        try:
            reply = await outcome
        except CloseConnection as error:
            self.drop(str(error))
            return
        finally:
            self._task = None
        if isinstance(reply, Deferred):
            # A produce that took its time, and now has its place in the log: the next may begin.
            exchange.deferred = reply
            self._is_waiting = False
            reply.when_resolved(lambda value: self._done(exchange, value))
            self._work_off_backlog()
        else:
            self._done(exchange, reply)

    def _done(self, exchange: RoutedExchange, reply: Reply) -> None:
        exchange.reply = reply
        if exchange.deferred is None or not exchange.deferred.pipelined:
            self._is_waiting = False
        self.finished(exchange)

    def finished(self, exchange: Exchange) -> None:
        """The reply is there; it leaves when those to earlier requests have left."""
        exchange.is_done = True
        if self._is_closed:
            return
        exchanges = self.exchanges
        while exchanges and exchanges[0].is_done:
            self._answer(exchanges.popleft())
        if self._backlog or self._is_paused:
            self._work_off_backlog()
        if self._shared.is_stopping and not exchanges and self._transport is not None:
            self._transport.close()

    def _work_off_backlog(self) -> None:
        backlog = self._backlog
        while backlog and not (self._is_waiting or self._stalled_at_s or self._is_closed):
            self._begin(backlog.popleft())
        if self._is_paused:
            self.resume()

    def _answer(self, exchange: Exchange) -> None:
        shared = self._shared
        byte_count = exchange.byte_count
        self._bytes_in_flight -= byte_count
        shared.bytes_in_flight -= byte_count
        if shared.starved:
            shared.feed()
        if not self._is_closed:
            self._send(exchange)
        exchange.metrics.observe(perf_counter() - exchange.started_s)
        if self._is_paused:
            self.resume()

    def _send(self, exchange: Exchange) -> None:
        try:
            chunks = exchange.reply_chunks()
        except NotEncodable:
            logger.exception("%s: the reply cannot be encoded", exchange.metrics.name)
            self.drop("its reply could not be encoded")
            return
        if not chunks:
            return
        if self._outgoing:
            self._outgoing += chunks
            return
        self._outgoing = chunks
        outbox = self._shared.outbox
        if outbox.is_corked:
            outbox.add(self)
        else:
            self.flush()

    def flush(self) -> None:
        """Hands the replies to the transport."""
        chunks, self._outgoing = self._outgoing, []
        if self._is_closed or self._transport is None:
            return
        if len(chunks) == 1:
            self._transport.write(chunks[0])
        else:
            self._transport.writelines(chunks)
