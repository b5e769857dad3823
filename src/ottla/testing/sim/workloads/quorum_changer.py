"""Takes the vote from one node after the other, and gives it back, whatever else happens."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from ottla.client.cluster import Cluster
from ottla.client.failures import Unreachable
from ottla.testing.sim.node import PORT
from ottla.testing.sim.workloads.stage import Stage
from ottla.types import METADATA_TOPIC
from ottla.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    VoterListener,
)
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
)
from ottla.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.wire.schema import Message

LISTENER: Final = "CONTROLLER"
TIMEOUT_MS: Final = 4_000
PAUSE_S_MAX: Final = 2.5


class QuorumChanger:
    """Ends when all nodes vote again. What is answered with an error may have been done."""

    def __init__(self, stage: Stage, name: str, count: Callable[[], None]) -> None:
        """`count` is told of each change that was acknowledged."""
        self._stage = stage
        self._name = name
        self._count = count

    async def run(self) -> None:
        stage, random = self._stage, self._stage.random(self._name)
        async with stage.cluster(self._name) as cluster:
            while True:
                await stage.pause(random, PAUSE_S_MAX)
                request, is_whole = await self._next_change(cluster, random)
                if stage.is_over and is_whole:
                    return
                if request is not None:
                    await self._change(cluster, random, request)

    async def _next_change(
        self, cluster: Cluster, random: Random
    ) -> tuple[AddRaftVoterRequest | RemoveRaftVoterRequest | None, bool]:
        """What to do next, if anybody can say, and whether all nodes vote."""
        wanted = DescribeQuorumTopic(METADATA_TOPIC, [DescribeQuorumPartition(0)])
        reply = await self._ask(
            cluster, random, DescribeQuorumRequest([wanted]), DescribeQuorumResponse
        )
        if reply is None or reply.error_code or reply.topics[0].partitions[0].error_code:
            return None, False
        seen, nodes = reply.topics[0].partitions[0], self._stage.world.nodes
        voters = {each.replica_id: each.replica_directory_id for each in seen.current_voters}
        observers = {each.replica_id: each.replica_directory_id for each in seen.observers}
        missing = [node_id for node_id in nodes if node_id not in voters]
        if missing:
            return self._addition(missing[0], observers.get(missing[0])), False
        if self._stage.is_over:
            return None, True
        node_id = random.choice(list(voters))
        return RemoveRaftVoterRequest(None, node_id, voters[node_id]), True

    def _addition(self, node_id: int, directory_id: bytes | None) -> AddRaftVoterRequest | None:
        if directory_id is None:
            return None
        listener = VoterListener(LISTENER, self._stage.world.nodes[node_id].host.ip, PORT)
        return AddRaftVoterRequest(None, TIMEOUT_MS, node_id, directory_id, [listener])

    async def _change(
        self,
        cluster: Cluster,
        random: Random,
        request: AddRaftVoterRequest | RemoveRaftVoterRequest,
    ) -> None:
        is_addition = isinstance(request, AddRaftVoterRequest)
        kind: type[Message] = AddRaftVoterResponse if is_addition else RemoveRaftVoterResponse
        reply = await self._ask(cluster, random, request, kind)
        if reply is not None and not reply.error_code:
            self._count()

    async def _ask(
        self, cluster: Cluster, random: Random, request: Message, kind: type[Any]
    ) -> Any:
        try:
            connection = await cluster.to_address(random.choice(self._stage.world.bootstrap))
            return await connection.ask(request, kind)
        except Unreachable as error:
            self._stage.history.refusals[type(error).__name__] += 1
            return None
