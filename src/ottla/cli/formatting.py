"""Whose a data directory is: written once, before its first start."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.log.directory import (
    DataDirectory,
    Identity,
    IncompatibleDataDirectory,
    decode_uuid,
    encode_uuid,
)
from ottla.ports import Disk
from ottla.types import METADATA_TOPIC, TopicPartition
from ottla.wire.messages.control_records import (
    KRaftVersionFeature,
    RegisteredVoter,
    VoterEndpoint,
    VotersRecord,
)

UUID_BYTES: Final = 16
PORT_MAX: Final = 65_535
KRAFT_VERSION: Final = 1
LISTENER: Final = "CONTROLLER"
METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
VOTER: Final = re.compile(r"(\d+)@(\[[0-9a-fA-F:.]+\]|[^\s:@]+):(\d+):([\w-]{22})")


class FirstVoter(NamedTuple):
    """One of the controllers that a cluster begins with."""

    node_id: int
    directory_id: bytes
    host: str = ""
    port: int = 0


def format_directory(
    path: str,
    cluster_id: str,
    node_id: int,
    *,
    ignore_formatted: bool,
    voters: Sequence[FirstVoter] | None = None,
    directory_id: bytes | None = None,
) -> bool:
    """Whether there was anything to do; CommandFailed where the directory is somebody else's.

    With `voters` the metadata log is begun in it: these, or none, vote on it as its records say.
    """
    from ottla.broker.storage.disk import RealDisk  # Not on Windows, where there is help.

    disk = RealDisk()
    try:
        disk.make_directory(path)
        data = DataDirectory(disk, path)
        known = data.read_identity()
        if known is not None:
            _check_same(path, known, cluster_id, node_id, ignore_formatted)
            return False
        if voters is not None:
            _write_voters(disk, data.partition_path(METADATA_PARTITION), voters)
        own_id = directory_id or new_directory_id()
        # Last: without it the directory is not formatted, whatever else is there.
        data.write_identity(Identity(cluster_id, node_id, own_id))
        disk.sync_directory(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise CommandFailed(f"{path} cannot be formatted: {error.strerror}.") from None
    except IncompatibleDataDirectory as error:
        raise CommandFailed(f"{error}.") from None
    return True


def _write_voters(disk: Disk, directory: str, voters: Sequence[FirstVoter]) -> None:
    from ottla.cluster.snapshot_file import SnapshotFiles

    disk.make_directory(directory)
    record = VotersRecord(
        0,
        [
            RegisteredVoter(
                voter.node_id,
                voter.directory_id,
                [VoterEndpoint(LISTENER, voter.host, voter.port)] if voter.host else [],
                KRaftVersionFeature(0, KRAFT_VERSION),
            )
            for voter in voters
        ],
    )
    now_ms = time.time_ns() // 1_000_000
    SnapshotFiles(disk, directory).write_first(record if voters else None, now_ms)


def parse_voters(text: str) -> list[FirstVoter]:
    """`ID@HOST:PORT:DIRECTORY_ID,…`, as Kafka's tool takes them."""
    found = [_parse_voter(each.strip()) for each in text.split(",")]
    for kind, names in (
        ("node id", [str(voter.node_id) for voter in found]),
        ("directory id", [encode_uuid(voter.directory_id) for voter in found]),
    ):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise WrongUsage(f"--initial-controllers has the {kind} {twice[0]} twice.")
    return found


def _parse_voter(text: str) -> FirstVoter:
    match, directory_id = VOTER.fullmatch(text), b""
    if match is not None:
        with suppress(ValueError):
            directory_id = decode_uuid(match[4])
    if match is None or not any(directory_id) or not 0 < int(match[3]) <= PORT_MAX:
        raise WrongUsage(
            f"--initial-controllers has {text!r}; write ID@HOST:PORT:DIRECTORY_ID, such as "
            f"1@10.0.0.1:9093:{new_id()} (`ottla storage random-id` makes directory ids)."
        )
    return FirstVoter(int(match[1]), directory_id, match[2].strip("[]"), int(match[3]))


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


def new_directory_id() -> bytes:
    return secrets.token_bytes(UUID_BYTES)
