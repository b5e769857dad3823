"""Moves partitions between nodes, takes moves back, and throttles them, whatever else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.failures import Unreachable
from ottla.testing.sim.workloads.stage import Stage
from ottla.types import TopicPartition
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)

TOPIC: Final = 2
BROKER: Final = 4
SET: Final = 0
DELETE: Final = 1
THROTTLED_REPLICAS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
THROTTLED_RATES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
)
# At the slowest a log takes minutes: who does not lift it never arrives.
RATES: Final = ("100", "2000", "20000")
# As many as `min.insync.replicas` asks for.
REPLICAS_MIN: Final = 2
TIMEOUT_MS: Final = 4_000
PAUSE_S_MAX: Final = 4.0
RETRY_S_MAX: Final = 1.0
# A node may still hand on what its client has given up.
LATE_S: Final = 10.0


class Mover:
    """When the faults are over all partitions go to all nodes, and no throttle is left.

    What is answered with an error may have been done: nothing here rests on it.
    """

    def __init__(
        self, stage: Stage, name: str, places: Sequence[TopicPartition], count: Callable[[], None]
    ) -> None:
        """`count` is told of each move that was taken."""
        self._stage = stage
        self._name = name
        self._places = places
        self._count = count
        self._random = stage.random(name)
        self._nodes = sorted(stage.world.nodes)

    async def run(self) -> None:
        stage, random = self._stage, self._random
        async with stage.cluster(self._name) as cluster:
            while not stage.is_healed:
                await stage.pause(random, PAUSE_S_MAX)
                await self._step(cluster, random.random())
            await self._settle(cluster)

    async def _step(self, cluster: Cluster, chance: float) -> None:
        random, places = self._random, self._places
        if chance < 0.6:
            some = random.sample(places, random.choice((1, 1, len(places))))
            await self._alter(cluster, {place: self._target() for place in some})
        elif chance < 0.75:
            await self._alter(cluster, {random.choice(places): None})
        else:
            await self._throttle(cluster, random.choice(RATES) if chance < 0.9 else None)

    async def _settle(self, cluster: Cluster) -> None:
        """Everywhere, and as fast as they can. What was asked before may come true until then."""
        stage, random = self._stage, self._random
        late_s = stage.world.now_s + LATE_S
        everywhere = {place: random.sample(self._nodes, len(self._nodes)) for place in self._places}
        is_settled = False
        while not is_settled or stage.world.now_s < late_s:
            await stage.pause(random, RETRY_S_MAX)
            is_settled = (
                await self._throttle(cluster, None)
                and await self._alter(cluster, everywhere)
                and not await self._is_moving(cluster)
            )

    def _target(self) -> list[int]:
        count = self._random.randint(REPLICAS_MIN, len(self._nodes))
        return self._random.sample(self._nodes, count)

    # ---------------------------------------------------------------------------------- asking

    async def _alter(
        self, cluster: Cluster, wanted: Mapping[TopicPartition, list[int] | None]
    ) -> bool:
        """Moves partitions, or takes their moves back (None). Whether all of it was taken."""
        topics: dict[str, ReassignableTopic] = {}
        for place, replicas in wanted.items():
            topic = topics.setdefault(place.topic, ReassignableTopic(name=place.topic))
            topic.partitions.append(ReassignablePartition(place.partition, replicas))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS, topics=list(topics.values())
        )
        reply = await self._ask(cluster, request, AlterPartitionReassignmentsResponse)
        if reply is None or reply.error_code:
            return False
        codes = [each.error_code for topic in reply.responses for each in topic.partitions]
        for code in codes:
            if not code:
                self._count()
        return not any(codes)

    async def _throttle(self, cluster: Cluster, rate: str | None) -> bool:
        """Of all replicas, at all nodes; None: of none. Whether all of it was taken."""
        replicas = None if rate is None else "*"
        topics = dict.fromkeys(place.topic for place in self._places)
        resources = [
            *(_setting(BROKER, str(node), THROTTLED_RATES, rate) for node in self._nodes),
            *(_setting(TOPIC, topic, THROTTLED_REPLICAS, replicas) for topic in topics),
        ]
        request = IncrementalAlterConfigsRequest(resources=resources)
        reply = await self._ask(cluster, request, IncrementalAlterConfigsResponse)
        return reply is not None and not any(each.error_code for each in reply.responses)

    async def _is_moving(self, cluster: Cluster) -> bool:
        """Whether something is, or nobody can say."""
        request = ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=None)
        reply = await self._ask(cluster, request, ListPartitionReassignmentsResponse)
        return reply is None or reply.error_code != 0 or bool(reply.topics)

    async def _ask(self, cluster: Cluster, request: Message, kind: type[R]) -> R | None:
        """Of any node; None without an answer."""
        try:
            address = self._random.choice(self._stage.world.bootstrap)
            connection = await cluster.to_address(address)
            return await connection.ask(request, kind)
        except Unreachable as error:
            self._stage.history.refusals[type(error).__name__] += 1
            return None


def _setting(
    kind: int, name: str, settings: Iterable[str], value: str | None
) -> AlterConfigsResource:
    operation = DELETE if value is None else SET
    configs = [AlterableConfig(setting, operation, value) for setting in settings]
    return AlterConfigsResource(kind, name, configs)
