"""Offsets: those of a log by time, and those that a group has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.client.connection import Connection
from ottla.client.failures import BadReply, is_passing, refusal, together
from ottla.client.settings import join_address
from ottla.client.values import FoundOffset
from ottla.errors import OttlaError
from ottla.types import NO_OFFSET, NodeId, TopicPartition
from ottla.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

CONSUMER: Final = -1
# From here on a request names several groups, or several coordinators.
GROUPS_VERSION: Final = 8

T = TypeVar("T")


# ------------------------------------------------------------------------------- offsets of logs


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, FoundOffset]:
    """Asks all leaders at once; what has been answered is not asked again."""
    found: dict[TopicPartition, FoundOffset] = {}

    async def attempt() -> None:
        left = {tp: time for tp, time in wanted.items() if tp not in found}
        grouped = await cluster.by_leader(left)
        failures: dict[TopicPartition, OttlaError] = {}

        async def ask(node: NodeId, partitions: list[TopicPartition]) -> None:
            times = {partition: left[partition] for partition in partitions}
            try:
                answers = await _ask_offsets(cluster, node, times, read_committed)
            except OttlaError as error:
                answers = dict.fromkeys(partitions, error)
            for partition, answer in answers.items():
                if isinstance(answer, FoundOffset):
                    found[partition] = answer
                else:
                    failures[partition] = answer

        await asyncio.gather(*(ask(node, part) for node, part in grouped.items()))
        if failures:
            cluster.forget_leaders(failures)
            raise together(failures)

    await cluster.retry("asking for offsets", attempt)
    return {partition: found[partition] for partition in wanted}


async def _ask_offsets(
    cluster: Cluster, node: NodeId, wanted: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, FoundOffset | OttlaError]:
    connection = await cluster.to_node(node)
    request = ListOffsetsRequest(
        replica_id=CONSUMER,
        isolation_level=int(read_committed),
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=index, timestamp=wanted[TopicPartition(topic, index)]
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in _by_topic(wanted).items()
        ],
        timeout_ms=int(cluster.settings.request_timeout_s * 1000),
    )
    reply = await connection.ask(request, ListOffsetsResponse)
    answers: dict[TopicPartition, FoundOffset | OttlaError] = {}
    for topic in reply.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            if answer.error_code:
                answers[partition] = refusal(answer.error_code, partition)
            else:
                answers[partition] = FoundOffset(answer.offset, answer.timestamp)
    _check_complete(connection, wanted, answers)
    return answers


# ----------------------------------------------------------------------------- offsets of groups


async def committed(
    cluster: Cluster, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """What the group's coordinator has for these partitions."""

    async def attempt() -> dict[TopicPartition, int]:
        connection = await _to_coordinator(cluster, group)
        try:
            return await _ask_committed(connection, group, partitions)
        except OttlaError as error:
            _forget_coordinator(cluster, group, error)
            raise

    return await cluster.retry(f"asking for the offsets of group {group!r}", attempt)


async def commit(cluster: Cluster, group: str, positions: Mapping[TopicPartition, int]) -> None:
    """Commits without a generation; brokers take that for groups without members only."""
    if not positions:
        return

    async def attempt() -> None:
        connection = await _to_coordinator(cluster, group)
        try:
            await _send_commit(connection, group, positions)
        except OttlaError as error:
            _forget_coordinator(cluster, group, error)
            raise

    await cluster.retry(f"committing offsets of group {group!r}", attempt)


async def _ask_committed(
    connection: Connection, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    wanted = _by_topic(partitions)
    request = OffsetFetchRequest(
        group_id=group,
        topics=[
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in wanted.items()
        ],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[
                    OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                    for name, indexes in wanted.items()
                ],
            )
        ],
        require_stable=True,
    )
    reply = await connection.ask(request, OffsetFetchResponse)
    if connection.version_of(OffsetFetchRequest) < GROUPS_VERSION:
        _check_group(reply.error_code, group)
        rows = [
            (topic.name, answer.partition_index, answer.error_code, answer.committed_offset)
            for topic in reply.topics
            for answer in topic.partitions
        ]
    else:
        if [answer.group_id for answer in reply.groups] != [group]:
            raise BadReply(f"{connection.address} answered for another group than {group!r}")
        _check_group(reply.groups[0].error_code, group)
        rows = [
            (topic.name, answer.partition_index, answer.error_code, answer.committed_offset)
            for topic in reply.groups[0].topics
            for answer in topic.partitions
        ]
    codes = {TopicPartition(name, index): code for name, index, code, _ in rows}
    _check_codes(connection, partitions, codes)
    return {
        TopicPartition(name, index): offset for name, index, _, offset in rows if offset > NO_OFFSET
    }


async def _send_commit(
    connection: Connection, group: str, positions: Mapping[TopicPartition, int]
) -> None:
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=positions[TopicPartition(topic, index)],
                        committed_metadata="",
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in _by_topic(positions).items()
        ],
    )
    reply = await connection.ask(request, OffsetCommitResponse)
    codes = {
        TopicPartition(topic.name, answer.partition_index): answer.error_code
        for topic in reply.topics
        for answer in topic.partitions
    }
    _check_codes(connection, positions, codes)


# ------------------------------------------------------------------------------ the coordinator


async def _to_coordinator(cluster: Cluster, group: str) -> Connection:
    address = cluster.coordinators.get(group)
    if address is None:
        address = cluster.coordinators[group] = await _find_coordinator(cluster, group)
    try:
        return await cluster.to_address(address)
    except OttlaError as error:
        _forget_coordinator(cluster, group, error)
        raise


async def _find_coordinator(cluster: Cluster, group: str) -> str:
    request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
    reply = await cluster.ask_any(request, FindCoordinatorResponse)
    found = reply.coordinators or [
        Coordinator(
            key=group,
            node_id=reply.node_id,
            host=reply.host,
            port=reply.port,
            error_code=reply.error_code,
            error_message=reply.error_message,
        )
    ]
    if found[0].error_code:
        raise refusal(found[0].error_code, f"group {group!r}", found[0].error_message)
    return join_address(found[0].host, found[0].port)


def _forget_coordinator(cluster: Cluster, group: str, error: OttlaError) -> None:
    if is_passing(error, soon=True):
        cluster.coordinators.pop(group, None)


# ---------------------------------------------------------------------------------- what is shared


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, index in partitions:
        grouped.setdefault(topic, []).append(index)
    return grouped


def _check_group(code: int, group: str) -> None:
    if code:
        raise refusal(code, f"group {group!r}")


def _check_codes(
    connection: Connection,
    wanted: Iterable[TopicPartition],
    codes: Mapping[TopicPartition, int],
) -> None:
    _check_complete(connection, wanted, codes)
    failures = {partition: refusal(code, partition) for partition, code in codes.items() if code}
    if failures:
        raise together(failures)


def _check_complete(
    connection: Connection, wanted: Iterable[TopicPartition], answers: Mapping[TopicPartition, T]
) -> None:
    missing = [partition for partition in wanted if partition not in answers]
    if missing or len(answers) != len(set(wanted)):
        raise BadReply(f"{connection.address} did not answer for each partition it was asked for")
