"""A network in virtual time: hosts, links between them, and TCP as processes see it.

Nothing that TCP would repair is ever lost: a segment that the network drops comes later, and all
after it wait. What processes notice is delay, silence, and connections that end, in mid-frame too.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.testing.sim.scheduler import Scheduler
from ottla.testing.sim.transport import FIN, RST, End

if TYPE_CHECKING:
    from ottla.testing.sim.loop import ProcessLoop

DELAY_S: Final = 0.000_1
JITTER_S: Final = 0.000_4
# What is sent again after a loss comes so much later, or twice, four times.
RETRANSMIT_S: Final = 0.2
SPLIT_SHARE: Final = 0.03
# Nobody has answered: asked again after these seconds, then given up.
CONNECT_RETRIES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
EPHEMERAL_PORT_MIN: Final = 32768
EPHEMERAL_PORTS: Final = 28000

HostName = int | str


class Address(NamedTuple):
    host: str
    port: int


class Link:
    """One direction between two hosts."""

    __slots__ = ("delay_s", "is_cut", "loss")

    def __init__(self) -> None:
        self.is_cut = False
        self.delay_s = 0.0
        self.loss = 0.0


class Listener:
    """A bound port. `open` lets connections in. Implements `ottla.ports.Listener`."""

    def __init__(
        self,
        host: Host,
        loop: ProcessLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        port: int,
        backlog: int,
    ) -> None:
        self.port = port
        self._host = host
        self._loop = loop
        self._factory = factory
        self._backlog = backlog
        self._waiting = 0
        self.is_open = False

    def claim(self) -> None:
        """Nobody else can have bound it."""

    async def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        if self._host.listeners.get(self.port) is self:
            del self._host.listeners[self.port]

    @property
    def has_room(self) -> bool:
        return self._waiting < self._backlog

    def accept(self, end: End) -> None:
        """The kernel has made the connection; the process gets it in its next turn."""
        self._waiting += 1
        self._loop.call_soon(self._take, end)

    def new_end(self, local: Address, remote: Address) -> End:
        return End(self._host.network, self._host, self._loop, local, remote)

    def _take(self, end: End) -> None:
        self._waiting -= 1
        if not end.is_gone:
            end.open(self._factory())


class Host:
    """A machine on the network: its address, its open ports, its connections."""

    def __init__(self, network: Network, name: HostName, ip: str) -> None:
        self.network = network
        self.name = name
        self.ip = ip
        self.is_on = True
        self.listeners: dict[int, Listener] = {}
        self.ends: dict[End, None] = {}
        self._next_port = 0
        # Ends of other machines that have sent what this one never got: it was off.
        self._missed: dict[End, None] = {}

    # ----------------------------------------------------------------------- for processes

    async def bind(
        self,
        loop: ProcessLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        port: int,
        backlog: int,
    ) -> Listener:
        if port in self.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = Listener(self, loop, factory, port or self._ephemeral(), backlog)
        self.listeners[listener.port] = listener
        return listener

    async def connect(
        self,
        loop: ProcessLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        ip: str,
        port: int,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        local = Address(self.ip, self._ephemeral())
        end = End(self.network, self, loop, local, Address(ip, port))
        made: asyncio.Future[None] = loop.create_future()
        self.network.shake_hands(end, made, 0)
        try:
            await made
        except BaseException:
            if end.peer is not None:
                end.end_by_kernel()
            raise
        protocol = factory()
        end.open(protocol)
        return end, protocol

    def _ephemeral(self) -> int:
        self._next_port = (self._next_port + 1) % EPHEMERAL_PORTS
        return EPHEMERAL_PORT_MIN + self._next_port

    # ---------------------------------------------------------------------- for the machine

    def process_died(self, loop: ProcessLoop) -> None:
        """Its kernel closes all that the process had open."""
        for listener in tuple(self.listeners.values()):
            listener.close()
        for end in tuple(self.ends):
            if end.loop is loop:
                end.end_by_kernel()

    def power_off(self) -> None:
        self.is_on = False
        for listener in tuple(self.listeners.values()):
            listener.close()
        for end in tuple(self.ends):
            end.vanish()

    def power_on(self) -> None:
        """Whoever still sends to what was here before is told that nobody knows of it."""
        self.is_on = True
        missed, self._missed = self._missed, {}
        for end in missed:
            if not end.is_gone:
                self.network.answer_reset(self, end)

    def missed_from(self, end: End) -> None:
        self._missed[end] = None

    def refuse(self, end: End) -> None:
        """Something came for an end of this host that is no more."""
        assert end.peer is not None
        self.network.answer_reset(self, end.peer)


class Network:
    """Every host can reach every other one until somebody says otherwise.

    Hosts are named by node id (int) or by the name of a client host (str).
    """

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self._scheduler = scheduler
        self._random = random
        self.hosts: dict[HostName, Host] = {}
        self._by_ip: dict[str, Host] = {}
        self._links: dict[tuple[HostName, HostName], Link] = {}
        # Told of what passes: kind, from, to, bytes.
        self.on_segment: Callable[[Host, Host, bytes | str], None] | None = None

    def add_host(self, name: HostName, ip: str) -> Host:
        host = self.hosts[name] = self._by_ip[ip] = Host(self, name, ip)
        return host

    # ----------------------------------------------------------------------------- troubles

    def cut(self, a: HostName, b: HostName) -> None:
        """Nothing passes between them in either direction; connections stall, new ones hang."""
        self.cut_one_way(a, b)
        self.cut_one_way(b, a)

    def cut_one_way(self, source: HostName, target: HostName) -> None:
        """What `source` sends does not reach `target`; the other way is open."""
        self._link(source, target).is_cut = True

    def isolate(self, name: HostName) -> None:
        """Cuts it off from every other host, those of clients included."""
        for other in self.hosts:
            if other != name:
                self.cut(name, other)

    def slow(self, a: HostName, b: HostName, delay_s: float) -> None:
        """What goes between them takes so much longer."""
        self.slow_one_way(a, b, delay_s)
        self.slow_one_way(b, a, delay_s)

    def slow_one_way(self, source: HostName, target: HostName, delay_s: float) -> None:
        """What `source` sends takes so much longer to `target`, and answers do not."""
        self._link(source, target).delay_s = delay_s

    def lossy(self, a: HostName, b: HostName, share: float) -> None:
        """This share of the segments is lost and sent again: they come late, and all after them."""
        self._link(a, b).loss = self._link(b, a).loss = share

    def reset(self, a: HostName, b: HostName) -> None:
        """All connections between them are reset, in the middle of whatever is under way."""
        there = self.hosts[b]
        for end in tuple(self.hosts[a].ends):
            if end.peer is not None and end.peer.host is there:
                for each in (end, end.peer):
                    self._tear(each)

    def heal(self) -> None:
        """All links are as they were at first; what was stalled arrives."""
        for link in self._links.values():
            link.is_cut = False
            link.delay_s = link.loss = 0.0
        for host in self.hosts.values():
            for end in tuple(host.ends):
                self._resend(end)
                if end.peer is not None:
                    self._resend(end.peer)

    def _tear(self, end: End) -> None:
        """Of the last segment under way a part arrives, and then a reset."""
        if end.peer is None or end.peer.is_gone:
            return
        if end.wire and isinstance(end.wire[-1], bytes) and len(end.wire[-1]) > 1:
            end.wire[-1] = end.wire[-1][: self._random.randrange(1, len(end.wire[-1]))]
        self.send(end, RST)

    def _resend(self, end: End) -> None:
        stalled, end.stalled = end.stalled, 0
        if stalled:
            first_s = self._scheduler.now_s + RETRANSMIT_S * self._random.random()
            for _ in range(stalled):
                self._bring(end, first_s)

    # -------------------------------------------------------------------------------- links

    def _link(self, source: HostName, target: HostName) -> Link:
        link = self._links.get((source, target))
        if link is None:
            for name in (source, target):
                if name not in self.hosts:
                    raise KeyError(f"there is no host {name!r}")
            link = self._links[source, target] = Link()
        return link

    def is_open(self, source: HostName, target: HostName) -> bool:
        return not self._link(source, target).is_cut

    def _delay_s(self, link: Link) -> float:
        delay_s = DELAY_S + JITTER_S * self._random.random() + link.delay_s
        if link.loss:
            again_s = RETRANSMIT_S
            while self._random.random() < link.loss and again_s < 30.0:
                delay_s += again_s
                again_s *= 2
        return delay_s

    # ----------------------------------------------------------------------------- segments

    def send(self, end: End, segment: bytes | str) -> None:
        """From one end to its peer, after all that was sent before."""
        peer = end.peer
        assert peer is not None
        link = self._link(end.host.name, peer.host.name)
        if isinstance(segment, bytes) and len(segment) > 1 and self._random.random() < SPLIT_SHARE:
            cut = self._random.randrange(1, len(segment))
            self._send(end, link, segment[:cut])
            segment = segment[cut:]
        self._send(end, link, segment)

    def _send(self, end: End, link: Link, segment: bytes | str) -> None:
        end.wire.append(segment)
        if link.is_cut or end.stalled:
            end.stalled += 1
        else:
            self._bring(end, self._scheduler.now_s + self._delay_s(link))

    def _bring(self, end: End, when_s: float) -> None:
        """One event for each segment; whichever comes first brings the first of them."""
        end.arrives_s = max(end.arrives_s, when_s)
        self._scheduler.at(end.arrives_s, self._arrive, end)

    def _arrive(self, end: End) -> None:
        segment, peer = end.wire.popleft(), end.peer
        assert peer is not None
        if not peer.host.is_on:
            peer.host.missed_from(end)
            return
        if self.on_segment is not None:
            self.on_segment(end.host, peer.host, segment)
        peer.arrived(segment)

    def acknowledge(self, reader: End, writer: End) -> None:
        """There is room again at the reader."""
        link = self._link(reader.host.name, writer.host.name)
        self._scheduler.after(self._delay_s(link), writer.window_opened)

    def answer_reset(self, host: Host, end: End) -> None:
        """`host` knows nothing of the connection whose other end this is."""
        link = self._link(host.name, end.host.name)
        if not link.is_cut and not end.is_gone:
            self._scheduler.after(self._delay_s(link), end.arrived, RST)

    # -------------------------------------------------------------------------- connections

    def shake_hands(self, end: End, made: asyncio.Future[None], attempt: int) -> None:
        host = self._by_ip.get(end.remote.host)
        if host is None:
            made.set_exception(OSError(errno.EHOSTUNREACH, "No route to host"))
            return
        there = self._link(end.host.name, host.name)
        self._scheduler.after(self._delay_s(there), self._asked, end, host, made, attempt)

    def _asked(self, end: End, host: Host, made: asyncio.Future[None], attempt: int) -> None:
        """The first segment has come to the other host, or was lost on its way."""
        if made.done() or end.loop.is_dead:
            return
        there, back = self._link(end.host.name, host.name), self._link(host.name, end.host.name)
        listener = host.listeners.get(end.remote.port)
        is_open = listener is not None and listener.is_open
        is_full = listener is not None and listener.is_open and not listener.has_room
        if there.is_cut or back.is_cut or not host.is_on or is_full:
            self._ask_again(end, made, attempt)
            return
        answered_s = self._delay_s(back)
        if listener is None or not is_open:
            self._scheduler.after(answered_s, self._refused, end, made)
            return
        peer = listener.new_end(end.remote, end.local)
        end.peer, peer.peer = peer, end
        host.ends[peer] = None
        end.host.ends[end] = None
        # What the server sends first comes after the connection is made.
        peer.arrives_s = self._scheduler.now_s + answered_s
        self._scheduler.at(peer.arrives_s, self._made, end, made)
        listener.accept(peer)

    def _ask_again(self, end: End, made: asyncio.Future[None], attempt: int) -> None:
        if attempt < len(CONNECT_RETRIES_S):
            pause_s = CONNECT_RETRIES_S[attempt]
            self._scheduler.after(pause_s, self.shake_hands, end, made, attempt + 1)
        else:
            end.loop.call_soon(_fail, made, TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def _refused(self, end: End, made: asyncio.Future[None]) -> None:
        error = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        end.loop.call_soon(_fail, made, error)

    def _made(self, end: End, made: asyncio.Future[None]) -> None:
        if end.loop.is_dead:
            end.end_by_kernel()
        else:
            end.loop.call_soon(_succeed, made)


def _fail(made: asyncio.Future[None], error: Exception) -> None:
    if not made.done():
        made.set_exception(error)


def _succeed(made: asyncio.Future[None]) -> None:
    if not made.done():
        made.set_result(None)


__all__ = ["FIN", "RST", "Address", "End", "Host", "HostName", "Link", "Listener", "Network"]
