"""Producer ids come in blocks from the controller; without one a client is told to try again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import ClassVar

import pytest

from ottla.broker.control.channel import ControllerChannel
from ottla.broker.control.producer_ids import ProducerIds
from ottla.client.failures import PASSING_CODES
from ottla.errors import NotController, OttlaError, StaleBrokerEpoch, code_of
from ottla.testing.sim.clock import SeededChance
from ottla.types import NodeId
from ottla.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse
from ottla.wire.schema import Message


class Here:
    """This node is the controller."""

    is_leader = True
    leader_id = NodeId(1)
    leader_epoch = 1
    voter_ids: ClassVar[set[int]] = {1}

    def address_of(self, node_id: NodeId) -> str | None:
        return None

    def on_leader_change(self, callback: Callable[[], None]) -> None:
        pass


async def ids_from(*answers: AllocateProducerIdsResponse | OttlaError, count: int) -> list[int]:
    left = list(answers)

    async def answer(request: Message) -> Message:
        reply = left.pop(0)
        if isinstance(reply, OttlaError):
            raise reply
        return reply

    channel = ControllerChannel(Here(), SeededChance(Random(1)), 1, answer)
    ids = ProducerIds(channel, 1, lambda: 7, timeout_s=0.0)
    return [await ids.next() for _ in range(count)]


def block(start: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=2)


def test_blocks_are_used_up_one_after_the_other() -> None:
    assert asyncio.run(ids_from(block(10), block(50), count=3)) == [10, 11, 50]


@pytest.mark.parametrize("refusal", [StaleBrokerEpoch("registered anew"), NotController("nobody")])
def test_a_client_is_told_to_try_again_when_there_is_no_block(refusal: OttlaError) -> None:
    with pytest.raises(OttlaError) as failed:
        asyncio.run(ids_from(refusal, count=1))
    assert code_of(failed.value) in PASSING_CODES
