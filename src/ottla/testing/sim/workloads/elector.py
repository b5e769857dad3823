"""Moves leaders back to where they belong, as an operator does after each trouble."""

from __future__ import annotations

from typing import Final

from ottla.client.failures import Unreachable
from ottla.testing.sim.workloads.stage import Stage
from ottla.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)

PREFERRED: Final = 0
TIMEOUT_MS: Final = 4_000
PAUSE_S_MAX: Final = 4.0


class Elector:
    """Whether a leader moves is the cluster's affair; that nothing is lost by it is checked."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name

    async def run(self) -> None:
        stage, random = self._stage, self._stage.random(self._name)
        topics: dict[str, list[int]] = {}
        for partition in stage.partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        request = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[TopicPartitions(*pair) for pair in topics.items()],
            timeout_ms=TIMEOUT_MS,
        )
        async with stage.cluster(self._name) as cluster:
            while not stage.is_over:
                await stage.pause(random, PAUSE_S_MAX)
                try:
                    connection = await cluster.to_address(random.choice(stage.world.bootstrap))
                    await connection.ask(request, ElectLeadersResponse)
                except Unreachable as error:
                    stage.history.refusals[type(error).__name__] += 1
