"""FetchSnapshot, versions 0 and 1 (KIP-630, KIP-853): another replica of the metadata log, which
ends before ours begins, reads a snapshot in pieces.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.cluster.snapshot_file import SnapshotId
from ottla.errors import ErrorCode, OttlaError, UnknownTopicOrPartition, code_of
from ottla.quorum.events import FetchAsked
from ottla.quorum.voters import ReplicaKey
from ottla.types import METADATA_TOPIC, NO_NODE, LeaderEpoch, NodeId, Offset
from ottla.wire.messages import fetch_snapshot as wire

PIECE_BYTES_MAX: Final = 8 * 1024 * 1024


async def handle(
    services: Services, context: RequestContext, request: wire.FetchSnapshotRequest
) -> wire.FetchSnapshotResponse:
    asked = _asked(request)
    answer = await services.quorum.answer(
        FetchAsked(
            ReplicaKey(NodeId(request.replica_id), asked.replica_directory_id),
            asked.current_leader_epoch,
            Offset(0),
            # Whoever needs a snapshot has nothing that counts, but it lives.
            False,
            request.cluster_id,
        )
    )
    result = wire.FetchSnapshotPartitionResult(
        error_code=answer.error,
        snapshot_id=asked.snapshot_id,
        current_leader=wire.LeaderIdAndEpoch(answer.leader_id, answer.epoch),
        position=asked.position,
    )
    if answer.error is ErrorCode.NONE:
        wanted = asked.snapshot_id
        id = SnapshotId(Offset(wanted.end_offset), LeaderEpoch(wanted.epoch))
        bytes_max = max(1, min(request.max_bytes, PIECE_BYTES_MAX))
        try:
            result.size, result.unaligned_records = await services.snapshots.piece(
                id, asked.position, bytes_max
            )
        except (OttlaError, OSError) as error:
            result.error_code = code_of(error)
    topic = wire.FetchSnapshotTopicResult(METADATA_TOPIC, [result])
    return wire.FetchSnapshotResponse(
        topics=[topic], node_endpoints=_leader(services, answer.leader_id)
    )


def _asked(request: wire.FetchSnapshotRequest) -> wire.FetchSnapshotPartition:
    topics = request.topics
    if len(topics) != 1 or topics[0].name != METADATA_TOPIC:
        raise UnknownTopicOrPartition(f"only {METADATA_TOPIC} has snapshots")
    if [partition.partition for partition in topics[0].partitions] != [0]:
        raise UnknownTopicOrPartition(f"{METADATA_TOPIC} has partition 0 and no other")
    return topics[0].partitions[0]


def _leader(services: Services, leader_id: NodeId) -> list[wire.NodeEndpoint]:
    endpoint = None if leader_id == NO_NODE else services.quorum.endpoint_of(leader_id)
    return [] if endpoint is None else [wire.NodeEndpoint(leader_id, endpoint.host, endpoint.port)]


def error_response(
    request: wire.FetchSnapshotRequest, error: Exception
) -> wire.FetchSnapshotResponse:
    return wire.FetchSnapshotResponse(error_code=code_of(error))
