"""What a leader gives up goes to the controller in requests of a bounded size."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ottla.broker.replication import handover
from ottla.broker.replication.handover import Handover
from ottla.types import LeaderEpoch
from ottla.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from unit.broker.test_replicas import OWN, SECOND, Node

COUNT = 5


def test_many_partitions_are_given_up_in_pieces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handover, "PARTITIONS_PER_REQUEST_MAX", 2)
    monkeypatch.setattr(handover, "NAMES_MAX", 2)
    caplog.set_level(logging.WARNING)
    partitions = [Node().partition for _ in range(COUNT)]
    asked: list[AlterPartitionRequest] = []

    async def ask(request: AlterPartitionRequest) -> AlterPartitionResponse:
        asked.append(request)
        if len(asked) == 3:
            for partition in partitions:
                partition.follow(LeaderEpoch(partition.leader_epoch + 1), SECOND)
        return AlterPartitionResponse()

    for partition in partitions:
        partition.lead(LeaderEpoch(1), (OWN, SECOND), (OWN, SECOND), 0, 0)
    asyncio.run(Handover(OWN, lambda: 5, ask).give_up(partitions))
    named = [len(topic.partitions) for request in asked for topic in request.topics]
    assert named == [2, 2, 1]
    members = asked[0].topics[0].partitions[0].new_isr_with_epochs
    assert [member.broker_id for member in members] == [SECOND]
    assert "t-0, t-0 and 3 others" in caplog.text
