"""Whose a data directory is: written once, before its first start."""

from __future__ import annotations

import os
import secrets
from typing import Final

from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.log.directory import (
    DataDirectory,
    Identity,
    IncompatibleDataDirectory,
    decode_uuid,
    encode_uuid,
)

UUID_BYTES: Final = 16


def format_directory(path: str, cluster_id: str, node_id: int, *, ignore_formatted: bool) -> bool:
    """Whether there was anything to do; CommandFailed where the directory is somebody else's."""
    from ottla.broker.storage.disk import RealDisk  # Not on Windows, where there is help.

    disk = RealDisk()
    try:
        disk.make_directory(path)
        data = DataDirectory(disk, path)
        known = data.read_identity()
        if known is not None:
            _check_same(path, known, cluster_id, node_id, ignore_formatted)
            return False
        data.write_identity(Identity(cluster_id, node_id, secrets.token_bytes(UUID_BYTES)))
        disk.sync_directory(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise CommandFailed(f"{path} cannot be formatted: {error.strerror}.") from None
    except IncompatibleDataDirectory as error:
        raise CommandFailed(f"{error}.") from None
    return True


def _check_same(
    path: str, known: Identity, cluster_id: str, node_id: int, ignore_formatted: bool
) -> None:
    is_same = (known.cluster_id, known.node_id) == (cluster_id, node_id)
    if is_same and ignore_formatted:
        return
    advice = "choose another directory"
    if is_same:
        advice = "give --ignore-formatted to leave it as it is"
    raise CommandFailed(
        f"{path} is node {known.node_id} of the cluster {known.cluster_id} already; {advice}."
    )


def check_id(cluster_id: str) -> None:
    try:
        decode_uuid(cluster_id)
    except ValueError:
        raise WrongUsage(
            f"--cluster-id {cluster_id} is none: 16 bytes in base64, such as {new_id()}; "
            "`ottla storage random-id` makes one."
        ) from None


def new_id() -> str:
    """None that begins with a dash: it would be taken for an option."""
    while (made := encode_uuid(secrets.token_bytes(UUID_BYTES))).startswith("-"):
        continue
    return made
