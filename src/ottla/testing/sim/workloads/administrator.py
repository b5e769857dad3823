"""Makes topics, changes and enlarges them, and deletes them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.client.cluster import Cluster
from ottla.client.failures import Unreachable
from ottla.testing.sim.history import TopicState
from ottla.testing.sim.workloads.stage import Stage
from ottla.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.schema import Message

TOPIC: Final = 2
SET: Final = 0
TOPICS_MAX: Final = 10
PARTITIONS_MAX: Final = 3
TIMEOUT_MS: Final = 4_000
RETENTION: Final = "retention.ms"


class Administrator:
    """A topic whose answer is missing is left alone: what was asked may still come true."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._random = stage.random(name)
        self._made = 0

    async def run(self) -> None:
        stage, random = self._stage, self._random
        async with stage.cluster(self._name) as cluster:
            name = self._next_name()
            while not stage.is_over:
                topic = stage.history.topic(name)
                if not topic.is_certain:
                    if self._made >= TOPICS_MAX:
                        return
                    name = self._next_name()
                    continue
                await self._step(cluster, name, topic.state)
                await stage.pause(random, 3.0)

    def _next_name(self) -> str:
        self._made += 1
        return f"passing-{self._made}"

    async def _step(self, cluster: Cluster, name: str, state: TopicState | None) -> None:
        chance = self._random.random()
        if state is None:
            await create_topic(self._stage, cluster, name, TopicState(1 + (chance < 0.5)))
        elif chance < 0.3:
            await self._delete(cluster, name)
        elif chance < 0.6 and state.partitions < PARTITIONS_MAX:
            await self._enlarge(cluster, name, state)
        else:
            await self._alter(cluster, name, state)

    async def _delete(self, cluster: Cluster, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name)], timeout_ms=TIMEOUT_MS)
        await _change(
            self._stage, cluster, name, None, request, DeleteTopicsResponse, lambda r: r.responses
        )

    async def _enlarge(self, cluster: Cluster, name: str, state: TopicState) -> None:
        count = state.partitions + 1
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name, count, None)], timeout_ms=TIMEOUT_MS
        )
        new = TopicState(count, state.configs)
        await _change(
            self._stage, cluster, name, new, request, CreatePartitionsResponse, lambda r: r.results
        )

    async def _alter(self, cluster: Cluster, name: str, state: TopicState) -> None:
        value = str(self._random.randint(10**9, 10**10))
        resource = AlterConfigsResource(TOPIC, name, [AlterableConfig(RETENTION, SET, value)])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        new = TopicState(state.partitions, ((RETENTION, value),))
        await _change(
            self._stage,
            cluster,
            name,
            new,
            request,
            IncrementalAlterConfigsResponse,
            lambda r: r.responses,
        )


async def create_topic(stage: Stage, cluster: Cluster, name: str, state: TopicState) -> bool:
    """Whether it was answered; if not, it may come to be all the same."""
    topic = CreatableTopic(
        name,
        state.partitions,
        len(stage.world.nodes),
        [],
        [CreatableTopicConfig(key, value) for key, value in state.configs],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
    return await _change(
        stage, cluster, name, state, request, CreateTopicsResponse, lambda r: r.topics
    )


async def _change(
    stage: Stage,
    cluster: Cluster,
    name: str,
    state: TopicState | None,
    request: Message,
    kind: type[Message],
    answers: Callable[[Any], Any],
) -> bool:
    """Any error leaves it open whether the change was made.

    One node is asked once: whoever asks a second one may see the first request come true later.
    """
    stage.history.begin_change(name, state)
    address = stage.random(f"{name} {len(stage.history.topics)}").choice(stage.world.bootstrap)
    try:
        connection = await cluster.to_address(address)
        reply = await connection.ask(request, kind)
    except Unreachable:
        return False
    if answers(reply)[0].error_code:
        return False
    stage.history.end_change(name)
    return True
