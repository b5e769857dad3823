"""Where a Spark stands by: one for each user, in a directory that nobody else can enter.

A lock tells whether one is there, and goes with its process whatever way that ends; a socket that
is left behind is nobody's, and the next one binds its own in its place.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ottla.spark.caches import private_directory
from ottla.spark.startup.environment import SCRATCH_PREFIX

LENGTH_BYTES: Final = 4
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
DESCRIPTORS_MAX: Final = 3
PATH_BYTES_MAX: Final = 4096
CREDENTIALS: Final = struct.Struct("3i")


class NotThere(Exception):
    """Nobody stands by, or whoever did has gone."""


def directory() -> Path | None:
    """None where there is none for this user alone, or no way to know who is at the other end."""
    found = private_directory("standby") if sys.platform == "linux" else None
    if found is not None:
        with suppress(OSError):
            found.chmod(0o700)
    return found


def socket_in(place: Path) -> Path:
    return place / "socket"


def connect(place: Path, patience_s: float) -> socket.socket:
    """Raises NotThere."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(patience_s)
    try:
        connection.connect(str(socket_in(place)))
    except OSError as error:
        connection.close()
        raise NotThere(str(error)) from None
    if not is_ours(connection):
        connection.close()
        raise NotThere("it is another user's")
    return connection


def listen(place: Path) -> socket.socket:
    """By whoever has the lock."""
    listening = socket.socket(socket.AF_UNIX)
    with suppress(FileNotFoundError):
        socket_in(place).unlink()
    listening.bind(str(socket_in(place)))
    socket_in(place).chmod(0o600)
    listening.listen()
    return listening


def is_ours(connection: socket.socket) -> bool:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(found)
    return bool(user == os.getuid())


def lock(place: Path, scratch: Path) -> int | None:
    """A descriptor that keeps it for as long as it is open; None when another keeps it.

    The file says where its owner has its temporary files: of one that was killed they are removed.
    """
    descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    left = os.pread(descriptor, PATH_BYTES_MAX, 0).decode(errors="surrogateescape")
    if left and Path(left).name.startswith(SCRATCH_PREFIX):
        shutil.rmtree(left, ignore_errors=True)
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, os.fsencode(scratch), 0)
    return descriptor


def unlock(descriptor: int) -> None:
    """By whoever goes on, or goes in peace: its files are its own to remove."""
    os.truncate(descriptor, 0)
    os.close(descriptor)


def send(connection: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    text = json.dumps(message).encode()
    head = len(text).to_bytes(LENGTH_BYTES, "big")
    if descriptors:
        socket.send_fds(connection, [head], descriptors)
        connection.sendall(text)
    else:
        connection.sendall(head + text)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A message and what came with it; raises NotThere when there is no whole one."""
    descriptors: list[int] = []
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, LENGTH_BYTES, DESCRIPTORS_MAX)
        return _message(connection, head), descriptors
    except (OSError, ValueError, NotThere) as error:
        close_all(descriptors)
        raise NotThere(str(error)) from None


def close_all(descriptors: Sequence[int]) -> None:
    for number in descriptors:
        os.close(number)


def _message(connection: socket.socket, begun: bytes) -> dict[str, Any]:
    if not begun:
        raise NotThere("the other end has gone")
    head = begun + _exactly(connection, LENGTH_BYTES - len(begun))
    length = int.from_bytes(head, "big")
    if length > MESSAGE_BYTES_MAX:
        raise NotThere("no message of ours")
    message: dict[str, Any] = json.loads(_exactly(connection, length))
    return message


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            raise NotThere("half a message")
        parts += part
    return bytes(parts)
