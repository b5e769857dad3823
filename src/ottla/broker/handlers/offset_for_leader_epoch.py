"""OffsetForLeaderEpoch, versions 2 to 4 (KIP-320): where a leader epoch ended."""

from __future__ import annotations

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import OttlaError, code_of
from ottla.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)


def handle(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answers: list[EpochEndOffset] = []
        response.topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
        for asked in topic.partitions:
            answer = EpochEndOffset(partition=asked.partition)
            answers.append(answer)
            try:
                partition = services.partitions.get(topic.topic, asked.partition)
                partition.check_epoch(asked.current_leader_epoch)
                # Not the high watermark: who fetches from beyond it has not strayed.
                answer.leader_epoch, answer.end_offset = partition.end_offset_for_epoch(
                    asked.leader_epoch
                )
            except OttlaError as error:
                answer.error_code = code_of(error)
    return response
