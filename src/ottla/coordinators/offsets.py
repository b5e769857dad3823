"""Committed positions: kept, read, committed, deleted, expired."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from ottla.coordinators.classic_group import ClassicGroup
from ottla.coordinators.group_records import OffsetRecord
from ottla.coordinators.group_states import GroupState
from ottla.coordinators.settings import GroupSettings, fits_in_record
from ottla.errors import ErrorCode
from ottla.types import NO_OFFSET, Offset, TopicPartition
from ottla.wire.messages.group_records import OffsetCommitValue
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

# From this version on a client can be told that its group is gone.
COMMIT_VERSION_WITH_GROUP_ERRORS: Final = 9

# Whether a partition of a topic exists, by topic name and partition index.
Exists: TypeAlias = Callable[[str, int], bool]
_Topics: TypeAlias = dict[str, dict[int, OffsetCommitValue]]


class Position(NamedTuple):
    """Where a group is in a partition."""

    group: str
    topic: str
    partition: int
    offset: Offset


class OffsetStore:
    """All committed positions of a shard: the fold over its offset records."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, _Topics] = {}

    def apply(self, record: OffsetRecord) -> None:
        if record.value is not None:
            topics = self._groups.setdefault(record.group, {})
            topics.setdefault(record.topic, {})[record.partition] = record.value
            return
        topics = self._groups.get(record.group, {})
        partitions = topics.get(record.topic, {})
        partitions.pop(record.partition, None)
        if not partitions:
            topics.pop(record.topic, None)
        if not topics:
            self._groups.pop(record.group, None)

    def clear(self) -> None:
        self._groups.clear()

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def of_group(self, group: str) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        return self._groups.get(group, {})

    def get(self, group: str, topic: str, partition: int) -> OffsetCommitValue | None:
        return self._groups.get(group, {}).get(topic, {}).get(partition)

    def positions(self) -> Iterator[Position]:
        """Every position, without copies; the store must not change meanwhile."""
        for group, topics in self._groups.items():
            for topic, partitions in topics.items():
                for partition, value in partitions.items():
                    yield Position(group, topic, partition, Offset(value.offset))

    def tombstones(self, group: str, topics: Iterable[str] | None = None) -> list[OffsetRecord]:
        """What deletes a group's positions: all of them, or those in `topics`."""
        found = self.of_group(group)
        return [
            OffsetRecord(group, topic, partition, None)
            for topic in (found if topics is None else topics)
            for partition in found.get(topic, ())
        ]

    def snapshot(self) -> dict[tuple[str, str, int], OffsetCommitValue]:
        return {
            (group, topic, partition): value
            for group, topics in self._groups.items()
            for topic, partitions in topics.items()
            for partition, value in partitions.items()
        }


# ------------------------------------------------------------------------------------------ commit


def check_commit(
    group: ClassicGroup | None, request: OffsetCommitRequest, version: int
) -> ErrorCode:
    """Who may commit: members of this generation, and anybody while nobody is in the group."""
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    if not fits_in_record(request.group_id):
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        is_told = version >= COMMIT_VERSION_WITH_GROUP_ERRORS
        return ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.ILLEGAL_GENERATION
    is_empty = group.state is GroupState.EMPTY
    if generation < 0 and is_empty:
        return ErrorCode.NONE
    if generation < 0 and not member_id and request.group_instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    code = group.check_member(member_id, request.group_instance_id)
    if code:
        return code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def check_transactional_commit(
    group: ClassicGroup | None, request: TxnOffsetCommitRequest
) -> ErrorCode:
    """As outside of transactions, but for clients that do not name a member (before KIP-447), and
    while the members are told what to read: their transaction began before that.
    """
    generation, member_id = request.generation_id, request.member_id
    if not fits_in_record(request.group_id) or not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    names_member = bool(generation >= 0 or member_id or request.group_instance_id is not None)
    if not names_member or (generation < 0 and _is_empty(group)):
        return ErrorCode.NONE
    if group is None:
        return ErrorCode.ILLEGAL_GENERATION
    code = group.check_member(member_id, request.group_instance_id)
    if code:
        return code
    return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def _is_empty(group: ClassicGroup | None) -> bool:
    return group is None or group.state is GroupState.EMPTY


def commit(
    request: OffsetCommitRequest,
    group_code: ErrorCode,
    exists: Exists,
    settings: GroupSettings,
    wall_ms: int,
) -> tuple[list[OffsetRecord], OffsetCommitResponse]:
    """What to write, and the reply; each partition stands for itself."""
    records: list[OffsetRecord] = []
    response = OffsetCommitResponse()
    retention_ms = request.retention_time_ms
    expire_wall_ms = wall_ms + retention_ms if retention_ms >= 0 else -1
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            record, code = _commit_one(
                request.group_id, topic.name, partition, group_code, exists, settings, wall_ms
            )
            if record is not None and record.value is not None:
                record.value.expire_timestamp = expire_wall_ms
                records.append(record)
            results.append(
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
            )
        response.topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=results))
    return records, response


def commit_in_transaction(
    request: TxnOffsetCommitRequest,
    group_code: ErrorCode,
    exists: Exists,
    settings: GroupSettings,
    wall_ms: int,
) -> tuple[list[OffsetRecord], TxnOffsetCommitResponse]:
    """What to write within the transaction, and the reply."""
    records: list[OffsetRecord] = []
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            record, code = _commit_one(
                request.group_id, topic.name, partition, group_code, exists, settings, wall_ms
            )
            if record is not None:
                records.append(record)
            results.append(TxnOffsetCommitResponsePartition(partition.partition_index, code))
        response.topics.append(TxnOffsetCommitResponseTopic(topic.name, results))
    return records, response


def _commit_one(
    group: str,
    topic: str,
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    group_code: ErrorCode,
    exists: Exists,
    settings: GroupSettings,
    wall_ms: int,
) -> tuple[OffsetRecord | None, ErrorCode]:
    if not exists(topic, partition.partition_index):
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if group_code:
        return None, group_code
    if _is_too_large(partition, settings.offset_metadata_max):
        return None, ErrorCode.OFFSET_METADATA_TOO_LARGE
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=wall_ms,
    )
    return OffsetRecord(group, topic, partition.partition_index, value), ErrorCode.NONE


def _is_too_large(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition, length_max: int
) -> bool:
    metadata = partition.committed_metadata
    return metadata is not None and (len(metadata) > length_max or not fits_in_record(metadata))


# ------------------------------------------------------------------------------------------- fetch


def fetch(
    store: OffsetStore,
    request: OffsetFetchRequestGroup,
    unstable: Container[TopicPartition] = (),
) -> OffsetFetchResponseGroup:
    """What was asked for, or everything; a position that is not there is -1 and no error.

    Where a transaction that is not over may change a position, that is told instead of it.
    """
    committed = store.of_group(request.group_id)
    if request.topics is None:
        wanted = [(topic, list(partitions)) for topic, partitions in committed.items()]
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    return OffsetFetchResponseGroup(
        group_id=request.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=topic,
                partitions=[
                    _unstable(partition)
                    if TopicPartition(topic, partition) in unstable
                    else _fetched(partition, committed.get(topic, {}).get(partition))
                    for partition in partitions
                ],
            )
            for topic, partitions in wanted
        ],
    )


def _unstable(partition: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=NO_OFFSET,
        metadata="",
        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )


def _fetched(partition: int, value: OffsetCommitValue | None) -> OffsetFetchResponsePartitions:
    if value is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=NO_OFFSET, metadata=""
        )
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


# ------------------------------------------------------------------------------------------ delete


def check_delete(group: ClassicGroup | None) -> ErrorCode:
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and not group.is_consumer_group:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def delete(
    store: OffsetStore, group: ClassicGroup, request: OffsetDeleteRequest, exists: Exists
) -> tuple[list[OffsetRecord], OffsetDeleteResponse]:
    """Positions in topics that the group reads stay."""
    records: list[OffsetRecord] = []
    response = OffsetDeleteResponse()
    for topic in request.topics:
        is_subscribed = group.subscribes(topic.name)
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            code = ErrorCode.NONE
            if not exists(topic.name, index):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_subscribed:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif store.get(group.id, topic.name, index) is not None:
                records.append(OffsetRecord(group.id, topic.name, index, None))
            results.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
    return records, response


# ------------------------------------------------------------------------------------------ expiry


def expired(
    store: OffsetStore, group: ClassicGroup, retention_ms: int, wall_ms: int
) -> list[OffsetRecord]:
    """Tombstones for what nobody needs any more (KIP-211).

    Counting starts when the group became empty; in a group that never had members, and for
    topics that a stable consumer group no longer reads, at the commit itself. A group in between
    keeps everything.
    """
    since_wall_ms: int | None = None
    if group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            since_wall_ms = group.state_since_wall_ms if group.state_since_wall_ms >= 0 else None
        elif group.state is not GroupState.STABLE or group.subscribed_topics is None:
            return []
    return [
        OffsetRecord(group.id, topic, partition, None)
        for topic, partitions in store.of_group(group.id).items()
        if not group.subscribes(topic)
        for partition, value in partitions.items()
        if _is_expired(value, since_wall_ms, retention_ms, wall_ms)
    ]


def _is_expired(
    value: OffsetCommitValue, since_wall_ms: int | None, retention_ms: int, wall_ms: int
) -> bool:
    if value.expire_timestamp >= 0:
        return wall_ms >= value.expire_timestamp
    start_wall_ms = value.commit_timestamp if since_wall_ms is None else since_wall_ms
    return wall_ms - start_wall_ms >= retention_ms
