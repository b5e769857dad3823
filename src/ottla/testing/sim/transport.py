"""One end of a simulated TCP connection: what a kernel does, and asyncio's transport on top."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from ottla.testing.sim.loop import ProcessLoop
    from ottla.testing.sim.network import Address, Host, Network

# So much may be on its way, or wait unread in the other kernel.
WINDOW_BYTES: Final = 256 * 1024
SEGMENT_BYTES_MAX: Final = 64 * 1024
READ_BYTES_MAX: Final = 256 * 1024
WRITE_BUFFER_HIGH_BYTES: Final = 64 * 1024
FIN: Final = "fin"
RST: Final = "rst"


def reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class End(asyncio.Transport):
    """What the process has written and the kernel not taken is lost when the process dies.

    `wire` has what is under way to the other end, in order; the network brings it there.
    """

    def __init__(
        self, network: Network, host: Host, loop: ProcessLoop, local: Address, remote: Address
    ) -> None:
        super().__init__()
        self.network = network
        self.host = host
        self.loop = loop
        self.local = local
        self.remote = remote
        self.peer: End | None = None
        self.wire: deque[bytes | str] = deque()
        # Segments at the end of `wire` that no event will bring: the link is cut.
        self.stalled = 0
        self.arrives_s = 0.0
        # The kernel knows nothing of it any more: process or machine are gone, or it was closed.
        self.is_gone = False
        self._protocol: asyncio.BaseProtocol | None = None
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self.in_flight_bytes = 0
        self._inbox: deque[bytes] = deque()
        self._has_fin = False
        self._is_reading = False
        self._is_read_due = False
        self._is_closing = False
        self._is_lost = False
        self._high_bytes = WRITE_BUFFER_HIGH_BYTES
        self._low_bytes = WRITE_BUFFER_HIGH_BYTES // 4
        self._is_writing_paused = False

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        """On the loop: the process has it now."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self._is_lost:
            self.loop.call_soon(protocol.connection_lost, reset_error())
        elif not self._is_closing:
            self._is_reading = True
            self._read_soon()

    # --------------------------------------------------------------------------- the kernel's

    def arrived(self, segment: bytes | str) -> None:
        """From the wire, whatever the process does just now."""
        if self.is_gone:
            if segment != RST:
                self.host.refuse(self)
            return
        if segment == RST:
            self.vanish()
            self._inbox.clear()
            self._unsent.clear()
            self.loop.call_soon(self._lose, reset_error())
            return
        if segment == FIN:
            self._has_fin = True
        else:
            self._inbox.append(cast(bytes, segment))
        self._read_soon()

    def vanish(self) -> None:
        """No word to the other end."""
        self.is_gone = True
        self.host.ends.pop(self, None)

    def end_by_kernel(self) -> None:
        """The process is gone: what it has not read or not handed over is lost."""
        if not self.is_gone:
            self._leave()

    def _leave(self) -> None:
        has_unread = bool(self._inbox)
        self.vanish()
        self.network.send(self, RST if has_unread else FIN)

    def window_opened(self) -> None:
        if not self.is_gone:
            self._push()

    def _push(self) -> None:
        """Hands to the network what the window allows."""
        unsent = self._unsent
        while unsent and self.in_flight_bytes < WINDOW_BYTES:
            data = unsent[0]
            if len(data) > SEGMENT_BYTES_MAX:
                data, unsent[0] = data[:SEGMENT_BYTES_MAX], data[SEGMENT_BYTES_MAX:]
            else:
                unsent.popleft()
            self._unsent_bytes -= len(data)
            self.in_flight_bytes += len(data)
            self.network.send(self, data)
        if self._is_writing_paused and self._unsent_bytes <= self._low_bytes:
            self._is_writing_paused = False
            self._call_protocol("resume_writing")
        if self._is_closing and not unsent and not self.is_gone:
            self._finish(None)

    def _call_protocol(self, name: str) -> None:
        if self._protocol is not None and not self._is_lost:
            self.loop.call_soon(getattr(self._protocol, name))

    # ---------------------------------------------------------------------------- reading

    def _read_soon(self) -> None:
        if self._is_reading and not self._is_read_due and (self._inbox or self._has_fin):
            self._is_read_due = True
            self.loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_read_due = False
        if not self._is_reading or self._is_closing:
            return
        inbox = self._inbox
        if not inbox:
            if self._has_fin:
                self._is_reading = False
                keep_open = cast(asyncio.Protocol, self._protocol).eof_received()
                if not keep_open:
                    self.close()
            return
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            count = self._read_into(self._protocol)
        else:
            count = self._read_bytes(cast(asyncio.Protocol, self._protocol))
        peer = self.peer
        if peer is not None:
            peer.in_flight_bytes -= count
            if peer._unsent and not peer.is_gone:
                self.network.acknowledge(self, peer)
        self._read_soon()

    def _read_into(self, protocol: asyncio.BufferedProtocol) -> int:
        buffer = memoryview(protocol.get_buffer(-1))
        inbox, count = self._inbox, 0
        while inbox and count < len(buffer):
            data = inbox[0]
            part = data[: len(buffer) - count]
            buffer[count : count + len(part)] = part
            count += len(part)
            if len(part) == len(data):
                inbox.popleft()
            else:
                inbox[0] = data[len(part) :]
        protocol.buffer_updated(count)
        return count

    def _read_bytes(self, protocol: asyncio.Protocol) -> int:
        data = b"".join(self._inbox)
        self._inbox.clear()
        protocol.data_received(data)
        return len(data)

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = True
            self._read_soon()

    # ---------------------------------------------------------------------------- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self.is_gone or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._push()
        self._pause_if_full()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _pause_if_full(self) -> None:
        if self._unsent_bytes > self._high_bytes and not self._is_writing_paused:
            self._is_writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = WRITE_BUFFER_HIGH_BYTES if low is None else 4 * low
        self._high_bytes = high
        self._low_bytes = high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def can_write_eof(self) -> bool:
        return False

    # ----------------------------------------------------------------------------- the end

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._is_reading = False
            if not self._unsent:
                self._finish(None)

    def abort(self) -> None:
        if not self._is_lost:
            self._unsent.clear()
            self._unsent_bytes = 0
            self._is_closing = True
            self._is_reading = False
            self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        if not self.is_gone:
            self._leave()
            self.loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._is_reading = False
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._is_closing

    # ------------------------------------------------------------------------------ the rest

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"peername": self.remote, "sockname": self.local}
        return known.get(name, default)


Factory = Callable[[], asyncio.BaseProtocol]
