"""The voters of the metadata log as its control records tell them (KIP-853)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ottla.broker.control.control_batches import KRAFT_VERSION, KRAFT_VOTERS, control_kind
from ottla.errors import CannotStart
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from ottla.types import NodeId, Offset
from ottla.wire.codec import decode
from ottla.wire.messages.control_records import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    RegisteredVoter,
    VoterEndpoint,
    VotersRecord,
)
from ottla.wire.records import decode_records, headers_in

if TYPE_CHECKING:
    from ottla.cluster.snapshot_file import Snapshot
    from ottla.log.log import Log
    from ottla.wire.schema import Buffer

# The only version of the formats that there is, and the highest kraft.version that is known here.
FORMAT_VERSION: Final = 0
KRAFT_VERSION_MAX: Final = 1
SCANNED_BYTES: Final = 1024 * 1024


def voters_record(voters: VoterSet) -> VotersRecord:
    return VotersRecord(
        FORMAT_VERSION,
        [
            RegisteredVoter(
                voter.key.id,
                voter.key.directory_id,
                [VoterEndpoint(*endpoint) for endpoint in voter.endpoints],
                KRaftVersionFeature(voter.kraft_version_min, voter.kraft_version_max),
            )
            for voter in voters
        ],
    )


def voters_of_record(record: VotersRecord) -> VoterSet:
    return VoterSet(
        Voter(
            ReplicaKey(NodeId(voter.voter_id), voter.voter_directory_id),
            tuple(Endpoint(each.name, each.host, each.port) for each in voter.endpoints),
            voter.k_raft_version_feature.min_supported_version,
            voter.k_raft_version_feature.max_supported_version,
        )
        for voter in record.voters
    )


def check_kraft_version(record: KRaftVersionRecord) -> None:
    if record.k_raft_version > KRAFT_VERSION_MAX:
        raise CannotStart(
            f"The metadata log is of kraft.version {record.k_raft_version}, and this version of "
            f"Ottla reads up to {KRAFT_VERSION_MAX}; start the version that wrote it, or a newer "
            "one."
        )


def voters_in(batches: Buffer) -> Iterator[tuple[Offset, VoterSet]]:
    """Each set of voters among these batches, with the offset of its record."""
    for position, header in headers_in(batches):
        if not header.is_control:
            continue
        for record in decode_records(batches, position):
            kind = control_kind(record)
            if kind == KRAFT_VERSION:
                check_kraft_version(decode(KRaftVersionRecord, record.value or b"", FORMAT_VERSION))
            elif kind == KRAFT_VOTERS:
                told = decode(VotersRecord, record.value or b"", FORMAT_VERSION)
                yield Offset(record.offset), voters_of_record(told)


def snapshot_voters(snapshot: Snapshot) -> tuple[Offset, VoterSet] | None:
    """Those that a snapshot tells, as of the last record that it stands for."""
    if snapshot.kraft_version is not None:
        check_kraft_version(snapshot.kraft_version)
    if snapshot.voters is None:
        return None
    return Offset(snapshot.end_offset - 1), voters_of_record(snapshot.voters)


def read_history(first: VoterHistory, snapshot: Snapshot | None, log: Log) -> VoterHistory:
    """Blocking: `first` is what holds before a record says otherwise."""
    told = None if snapshot is None else snapshot_voters(snapshot)
    if told is not None and told[0] >= 0:
        first.append(*told)
    elif snapshot is not None and snapshot.kraft_version is not None:
        # What a disk was formatted with stands before the log, and is written to it.
        voters = VoterSet(()) if told is None else told[1]
        first = VoterHistory(voters, can_change=snapshot.kraft_version.k_raft_version > 0)
    offset = log.start_offset if snapshot is None else max(log.start_offset, snapshot.end_offset)
    while offset < log.end_offset:
        data = log.read(offset, SCANNED_BYTES, log.written, cached_only=False, with_empty=True)
        if not data:
            break
        for at, voters in voters_in(data):
            if at >= offset:
                first.append(at, voters)
        offset = max(header.next_offset for _, header in headers_in(data))
    return first
