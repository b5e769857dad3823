"""OffsetCommit, versions 2 to 9 (KIP-98, 211, 320, 345, 848's error codes).

Each partition succeeds or fails by itself. Left out: member epochs of the KIP-848 protocol.
"""

from __future__ import annotations

from ottla.broker.control.shards import coordinator_code_of, when_decided
from ottla.broker.deferred import Deferred
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Deferred[OffsetCommitResponse]:
    exists = services.groups.has_partition
    future = services.groups.shard_of(request.group_id).submit(
        lambda machine, now, ticket: machine.commit(request, context.version, exists, now, ticket)
    )
    return when_decided(future, lambda error: error_response(request, error))


def error_response(request: OffsetCommitRequest, error: Exception) -> OffsetCommitResponse:
    code = coordinator_code_of(error)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
