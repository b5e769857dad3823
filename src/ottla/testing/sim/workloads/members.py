"""Members of a group by the classic protocol: they join, share partitions, and commit offsets."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.failures import Unreachable, is_passing
from ottla.client.settings import join_address
from ottla.errors import ErrorCode, OttlaError
from ottla.testing.sim.history import Join
from ottla.testing.sim.workloads.stage import Stage
from ottla.types import TopicPartition
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.wire.schema import Message

SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 10_000
BEAT_S: Final = 1.0
RETRY_S: Final = 0.2
JOIN_TIMEOUT_S: Final = REBALANCE_MS / 1000 + 5
PROTOCOL: Final = "in-turn"
# The request was looked at, and changed nothing.
NOT_TAKEN: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
COORDINATOR_MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)

R = TypeVar("R", bound=Message)


class Rejoin(Exception):
    """The generation is over."""


class Lost(Exception):
    """The coordinator has to be looked for."""


class Member:
    """One of a group that shares the stage's partitions."""

    def __init__(self, stage: Stage, group: str, name: str) -> None:
        self._stage = stage
        self._group = group
        self.name = name
        self._random = stage.random(name)
        self._member_id = ""
        self._generation = -1
        self._assigned: list[TopicPartition] = []
        self._coordinator: str | None = None
        # A generation that it belongs to, for those who wait until groups answer.
        self.is_settled = False

    async def run(self) -> None:
        async with self._stage.cluster(self.name) as cluster:
            while not self._stage.is_over:
                try:
                    if self._generation < 0:
                        await self._join(cluster)
                        await self._look_up(cluster)
                    await self._belong(cluster)
                except Rejoin:
                    self._generation, self.is_settled = -1, False
                except Lost:
                    self._coordinator = None
                    await asyncio.sleep(RETRY_S)

    # ------------------------------------------------------------------------------- belonging

    async def _join(self, cluster: Cluster) -> None:
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=b"")],
        )
        reply = await self._ask(cluster, request, JoinGroupResponse, JOIN_TIMEOUT_S)
        if reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = reply.member_id
            raise Rejoin
        self._check(reply.error_code)
        self._member_id = reply.member_id
        assignments = []
        if reply.leader == reply.member_id:
            members = [member.member_id for member in reply.members]
            assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=_share(parts))
                for member, parts in _deal(members, self._stage.partitions).items()
            ]
        synced = await self._ask(
            cluster,
            SyncGroupRequest(
                group_id=self._group,
                generation_id=reply.generation_id,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name=PROTOCOL,
                assignments=assignments,
            ),
            SyncGroupResponse,
            JOIN_TIMEOUT_S,
        )
        self._check(synced.error_code)
        self._generation = reply.generation_id
        self._stage.history.join(Join(self._group, self._member_id, self._generation))
        self._assigned = _read_share(synced.assignment)

    async def _look_up(self, cluster: Cluster) -> None:
        """Where the group has come to with what is this member's now."""
        if not self._assigned:
            return
        history = self._stage.history
        possible = {part: history.commits_of(self._group, part).possible for part in self._assigned}
        found = await cluster.committed(self._group, self._assigned)
        for part in self._assigned:
            history.fetch_offset(self._group, part, found.get(part, -1), possible[part])

    async def _belong(self, cluster: Cluster) -> None:
        """Beats and commits, as long as the generation lasts."""
        while not self._stage.is_over:
            request = HeartbeatRequest(
                group_id=self._group, generation_id=self._generation, member_id=self._member_id
            )
            reply = await self._ask(cluster, request, HeartbeatResponse)
            self._check(reply.error_code)
            self.is_settled = True
            for part in self._assigned:
                if self._random.random() < 0.5:
                    await self._commit(cluster, part)
            await asyncio.sleep(BEAT_S * (0.5 + self._random.random()))

    async def _commit(self, cluster: Cluster, part: TopicPartition) -> None:
        history = self._stage.history
        value = history.begin_commit(self._group, part)
        stored = OffsetCommitRequestPartition(part.partition, value, committed_metadata="")
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(part.topic, [stored])],
        )
        reply = await self._ask(cluster, request, OffsetCommitResponse)
        code = reply.topics[0].partitions[0].error_code
        if code == 0 or code in NOT_TAKEN:
            history.end_commit(self._group, part, value, is_taken=code == 0)
        self._check(code)

    # ---------------------------------------------------------------------------------- asking

    def _check(self, code: int) -> None:
        if code == 0:
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            raise Rejoin
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._member_id = ""
            raise Rejoin
        raise Lost

    async def _ask(
        self, cluster: Cluster, request: Message, kind: type[R], timeout_s: float | None = None
    ) -> R:
        try:
            connection = await self._to_coordinator(cluster)
            return await connection.ask(request, kind, timeout_s=timeout_s)
        except Unreachable:
            raise Lost from None

    async def _to_coordinator(self, cluster: Cluster) -> Connection:
        if self._coordinator is None:
            try:
                reply = await cluster.ask_any(
                    FindCoordinatorRequest(
                        key=self._group, key_type=0, coordinator_keys=[self._group]
                    ),
                    FindCoordinatorResponse,
                )
            except OttlaError as error:
                if not is_passing(error):
                    raise
                raise Lost from None
            found = reply.coordinators[0]
            if found.error_code:
                raise Lost
            self._coordinator = join_address(found.host, found.port)
        return await cluster.to_address(self._coordinator)


def _deal(members: list[str], partitions: list[TopicPartition]) -> dict[str, list[TopicPartition]]:
    shares: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
    for place, partition in enumerate(partitions):
        shares[sorted(members)[place % len(members)]].append(partition)
    return shares


def _share(partitions: list[TopicPartition]) -> bytes:
    return ",".join(map(str, partitions)).encode()


def _read_share(assignment: bytes) -> list[TopicPartition]:
    found = []
    for name in bytes(assignment).decode().split(","):
        topic, _, index = name.rpartition("-")
        if topic:
            found.append(TopicPartition(topic, int(index)))
    return found
