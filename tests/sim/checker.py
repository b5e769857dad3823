"""Asks a broker that has started again for everything that was promised before."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.log.checkpoints import HIGH_WATERMARKS, read_offsets
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from sim.caller import Caller
from sim.history import Broken, Found, History, PartitionHistory, TopicState, batches_in
from sim.machine import Machine

TOPIC = 2
OF_THE_TOPIC = 1
EARLIEST, LATEST = -2, -1
LOADING = (14, 15, 16)
OFFSETS_TOPIC = "__consumer_offsets"
RETRY_S = 0.002


class Checker:
    def __init__(self, machine: Machine, history: History, caller: Caller) -> None:
        self._machine = machine
        self._history = history
        self._caller = caller

    async def check(self) -> None:
        self._history.win_epoch(self._machine.metadata_epoch)
        await self._check_topics()
        for name in self._history.names.values():
            for partition in name.partitions:
                await self._check_partition(partition)
        await self._check_commits()
        self._check_high_watermarks()

    async def _check_topics(self) -> None:
        history = self._history
        reply = await self._caller.ask(MetadataRequest(topics=None), 12)
        if history.cluster_id not in (None, reply.cluster_id):
            raise Broken(f"the cluster was {history.cluster_id}, now it is {reply.cluster_id}")
        history.cluster_id = reply.cluster_id
        there = {topic.name: topic for topic in reply.topics if topic.name != OFFSETS_TOPIC}
        configs = await self._configs(list(there))
        for name in (*history.names, *(set(there) - set(history.names))):
            topic = there.get(name)
            found = None
            if topic is not None:
                found = TopicState(len(topic.partitions), configs[name], topic.topic_id)
            history.name(name).check(found)
            if topic is not None:
                for part in topic.partitions:
                    self._raise_epoch(history.name(name).partitions[part.partition_index], part)

    def _raise_epoch(self, partition: PartitionHistory, told: Any) -> None:
        if told.error_code:
            raise Broken(f"{partition.name}: error {told.error_code}")
        if told.leader_epoch <= partition.leader_epoch:
            raise Broken(
                f"{partition.name}: leader epoch {told.leader_epoch} after {partition.leader_epoch}"
            )
        partition.leader_epoch = told.leader_epoch

    async def _configs(self, names: list[str]) -> dict[str, tuple[tuple[str, str], ...]]:
        resources = [DescribeConfigsResource(TOPIC, name, None) for name in names]
        reply = await self._caller.ask(DescribeConfigsRequest(resources=resources), 4)
        return {
            result.resource_name: tuple(
                sorted(
                    (config.name, config.value)
                    for config in result.configs
                    if config.config_source == OF_THE_TOPIC
                )
            )
            for result in reply.results
        }

    async def _check_partition(self, partition: PartitionHistory) -> None:
        start = await self._offset(partition, EARLIEST)
        end = await self._offset(partition, LATEST)
        batches: list[Found] = []
        at = start
        while at < end:
            answer = await fetch(self._caller, partition, at)
            if answer.error_code:
                raise Broken(
                    f"{partition.name}: reading {at} of [{start}, {end}] gives error "
                    f"{answer.error_code}, high watermark {answer.high_watermark}"
                )
            found = batches_in(answer.records or b"")
            if not found:
                raise Broken(f"{partition.name}: nothing is read at {at}, the end is {end}")
            batches += found
            at = found[-1].header.next_offset
        partition.check(start, end, batches)

    async def _offset(self, partition: PartitionHistory, timestamp: int) -> int:
        asked = ListOffsetsPartition(partition.index, timestamp=timestamp)
        topics = [ListOffsetsTopic(partition.topic, [asked])]
        reply = await self._caller.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        answer = reply.topics[0].partitions[0]
        if answer.error_code:
            raise Broken(f"{partition.name}: looking up gives error {answer.error_code}")
        return int(answer.offset)

    async def _check_commits(self) -> None:
        for (group, topic, index), commits in self._history.commits.items():
            if commits.answered < 0 and not commits.unanswered:
                continue
            found = await self._committed(group, topic, index)
            if found != commits.answered and found not in commits.unanswered:
                raise Broken(
                    f"group {group}: {topic}-{index} was committed at {commits.answered}, "
                    f"{found} is found"
                )
            commits.answered, commits.unanswered = found, []

    async def _committed(self, group: str, topic: str, index: int) -> int:
        asked = OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics(topic, [index])])
        while True:
            reply = await self._caller.ask(OffsetFetchRequest(groups=[asked]), 8)
            answer = reply.groups[0]
            if answer.error_code == 0:
                return int(answer.topics[0].partitions[0].committed_offset)
            if answer.error_code not in LOADING:
                raise Broken(f"group {group}: error {answer.error_code}")
            await asyncio.sleep(RETRY_S)

    def _check_high_watermarks(self) -> None:
        """The file that tools read says nothing of offsets that are not there."""
        names = self._history.names.values()
        ids = {name.name: name.partitions[0].topic_id for name in names if name.partitions}
        for directory in self._machine.broker.config.log_dirs:
            offsets = read_offsets(self._machine.disk, f"{directory}/{HIGH_WATERMARKS}", ids)
            for name in self._history.names.values():
                # With write.caching the high watermark is ahead of the syncs.
                for partition in (p for p in name.partitions if not p.is_cached):
                    for known, offset in offsets.items():
                        if str(known) == partition.name and offset > partition.shown_end:
                            raise Broken(
                                f"{partition.name}: {HIGH_WATERMARKS} says {offset}, the log "
                                f"ends at {partition.shown_end}"
                            )


async def fetch(caller: Caller, partition: PartitionHistory, offset: int, wait_ms: int = 0) -> Any:
    asked = FetchPartition(partition.index, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        topics=[FetchTopic(partition.topic, partitions=[asked])], max_wait_ms=wait_ms, min_bytes=1
    )
    return (await caller.ask(request, 12)).responses[0].partitions[0]


async def new_producer_id(caller: Caller, history: History) -> int | None:
    """None when the broker cannot say just now."""
    reply = await caller.ask(InitProducerIdRequest(transactional_id=None), 4)
    if reply.error_code:
        return None
    history.take_producer_id(reply.producer_id)
    return int(reply.producer_id)
