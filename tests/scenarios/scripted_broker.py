"""A listening socket whose answers a test makes up, for what no honest broker does."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from ottla.wire.codec import decode
from ottla.wire.framing import RequestHead, frame_reply, read_head
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.schema import Message

# What a script returns: bytes to send, None for silence.
Script = Callable[[RequestHead, memoryview], bytes | None]
SOCKET_TIMEOUT_S = 60.0


class ScriptedBroker:
    """Calls the script for each request of each connection; an empty answer closes it."""

    def __init__(self, script: Script, flexible: Callable[[int, int], bool]) -> None:
        self._script = script
        self._flexible = flexible
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.heads: list[RequestHead] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing alone does not wake a thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._sockets:
            client.close()

    def send(self, data: bytes) -> None:
        """Sends a piece of an answer over the newest connection."""
        newest = self._sockets[-1]
        newest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        newest.sendall(data)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(SOCKET_TIMEOUT_S)
            self._sockets.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rb") as stream:
                while size := stream.read(4):
                    frame = memoryview(stream.read(struct.unpack(">i", size)[0]))
                    head = read_head(frame, self._flexible)
                    self.heads.append(head)
                    answer = self._script(head, frame)
                    if answer == b"":
                        return
                    if answer is not None:
                        client.sendall(answer)
        except OSError:
            return


def reply(head: RequestHead, message: Message) -> bytes:
    """A whole answer to the request of this head."""
    is_flexible = head.version in type(message).FLEXIBLE
    return b"".join(frame_reply(head.correlation_id, is_flexible, message, head.version))


def greeting(apis: Iterable[tuple[int, int, int]], version_max: int = 4) -> Script:
    """Answers ApiVersions as a broker that has versions of it up to `version_max`."""
    keys = [ApiVersion(*api) for api in apis]

    def script(head: RequestHead, frame: memoryview) -> bytes | None:
        assert head.api_key == ApiVersionsRequest.API_KEY
        if head.version > version_max:
            message = ApiVersionsResponse(error_code=35, api_keys=keys)
            return b"".join(frame_reply(head.correlation_id, False, message, 0))
        decode(ApiVersionsRequest, frame, head.version, head.body_at)
        return reply(head, ApiVersionsResponse(api_keys=keys))

    return script
