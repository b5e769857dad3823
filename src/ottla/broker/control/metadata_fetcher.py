"""A follower's way to the metadata log: one fetch at a time, from the end of what is synced."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ottla.broker.control.quorum_peers import QuorumPeers, told_endpoints
from ottla.broker.control.snapshot_fetch import SnapshotFetch
from ottla.broker.storage.waiters import FutureWaiter
from ottla.client.failures import CannotConnect, ClientFailed, ConnectionLost
from ottla.cluster.snapshot_file import SnapshotId
from ottla.errors import ErrorCode, OttlaError
from ottla.quorum.events import FetchAnswered, LeaderUnreachable
from ottla.quorum.node import LogEnd
from ottla.types import METADATA_TOPIC_ID, NO_NODE, NodeId, Offset
from ottla.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)

if TYPE_CHECKING:
    from ottla.broker.control.metadata_quorum import MetadataQuorum

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
WAIT_MS_MAX: Final = 500
# Between two who do not know the leader either.
SEEK_PAUSE_S: Final = 0.05


class MetadataFetcher:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        quorum: MetadataQuorum,
        peers: QuorumPeers,
    ) -> None:
        self._loop = loop
        self._quorum = quorum
        self._peers = peers
        self._task: asyncio.Task[None] | None = None
        self._next_peer = 0
        self._source = (NO_NODE, -1)
        self._snapshot: SnapshotFetch | None = None

    def fetch_from(self, leader_id: NodeId, epoch: int) -> None:
        """NO_NODE: from anybody, until one tells who leads."""
        self.stop()
        if (leader_id, epoch) != self._source:
            # Another leader may have another snapshot of the same name.
            self._source, self._snapshot = (leader_id, epoch), None
        if self._peers.others:
            self._task = self._loop.create_task(self._go_on_fetching(leader_id, epoch))

    def take_snapshot(self, id: SnapshotId) -> None:
        """Before the next fetch from this leader."""
        self._snapshot = SnapshotFetch(self._quorum, self._peers, id)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _go_on_fetching(self, leader_id: NodeId, epoch: int) -> None:
        while True:
            try:
                await self._durable()
                if self._snapshot is None:
                    await self._fetch(leader_id, epoch)
                elif await self._snapshot.go_on(leader_id, epoch):
                    self._snapshot = None
            except (CannotConnect, ConnectionLost) as error:
                logger.debug("the metadata log cannot be fetched: %s", error)
                if leader_id != NO_NODE:
                    self._quorum.tell(LeaderUnreachable(epoch, leader_id))
                await asyncio.sleep(self._peers.times.retry_backoff_ms / 1000)
            except (ClientFailed, OttlaError, OSError) as error:
                logger.warning("the metadata log cannot be fetched: %s", error)
                await asyncio.sleep(SEEK_PAUSE_S)
            else:
                if leader_id == NO_NODE:
                    await asyncio.sleep(SEEK_PAUSE_S)

    async def _durable(self) -> None:
        """Returns when all of the log is synced: the next fetch says so."""
        if not self._quorum.partition.is_all_synced:
            waiter = FutureWaiter(self._loop.create_future())
            self._quorum.partition.wait_durable(waiter, None)
            await waiter.future
            self._quorum.synced()

    async def _fetch(self, leader_id: NodeId, epoch: int) -> None:
        peer = leader_id if leader_id != NO_NODE else self._another()
        log = self._quorum.log_end()
        wait_ms = min(WAIT_MS_MAX, self._peers.times.fetch_timeout_ms // 2)
        reply = await self._peers.fetch(peer, self._request(log, epoch, wait_ms), wait_ms)
        event, records = self._event(peer, log, reply)
        await self._quorum.ask(event, records)
        if event.error is ErrorCode.NONE and event.high_watermark >= 0:
            partition = self._quorum.partition
            if event.high_watermark <= partition.high_watermark.offset:
                self._quorum.caught_up()
        elif event.error is not ErrorCode.NONE:
            await asyncio.sleep(SEEK_PAUSE_S)

    def _another(self) -> NodeId:
        others = self._peers.others
        self._next_peer = (self._next_peer + 1) % len(others)
        return others[self._next_peer]

    def _request(self, log: LogEnd, epoch: int, wait_ms: int) -> FetchRequest:
        own = self._peers.own.key
        asked = FetchPartition(
            partition=0,
            current_leader_epoch=epoch,
            fetch_offset=log.end_offset,
            last_fetched_epoch=log.last_epoch,
            log_start_offset=self._quorum.partition.start_offset,
            partition_max_bytes=FETCH_BYTES_MAX,
            replica_directory_id=own.directory_id,
        )
        return FetchRequest(
            cluster_id=self._peers.cluster_id,
            replica_state=ReplicaState(own.id, -1),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            topics=[FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[asked])],
        )

    def _is_unknown_lead(self, leader_id: NodeId, epoch: int) -> bool:
        """Whether this node is said to lead an epoch that it has not won, by all it remembers."""
        quorum, own = self._quorum, self._peers.own.key.id
        known = (quorum.leader_epoch, quorum.leader_id)
        return leader_id == own and epoch >= quorum.leader_epoch and known != (epoch, own)

    def _event(
        self, peer: NodeId, log: LogEnd, reply: FetchResponse
    ) -> tuple[FetchAnswered, bytes]:
        code = reply.error_code
        if not code and reply.responses:
            code = reply.responses[0].partitions[0].error_code
        is_foreign = self._peers.is_of_another_cluster(peer, code)
        if code == ErrorCode.INVALID_VOTER_KEY:
            self._quorum.admission.meet_double()
            is_foreign = True
        if reply.error_code or not reply.responses or is_foreign:
            known = self._quorum
            error = ErrorCode(code or ErrorCode.UNKNOWN_SERVER_ERROR)
            return FetchAnswered(
                log.end_offset, log.last_epoch, error, known.leader_epoch, NO_NODE, Offset(-1)
            ), b""
        data = reply.responses[0].partitions[0]
        leader, parted, snapshot = data.current_leader, data.diverging_epoch, data.snapshot_id
        leader_id = NodeId(leader.leader_id)
        if self._is_unknown_lead(leader_id, leader.leader_epoch):
            self._quorum.admission.meet_double()
        records = bytes(data.records or b"")
        event = FetchAnswered(
            log.end_offset,
            log.last_epoch,
            ErrorCode(data.error_code),
            leader.leader_epoch,
            leader_id,
            Offset(data.high_watermark),
            bool(records),
            (parted.epoch, Offset(parted.end_offset)) if parted.end_offset >= 0 else None,
            (Offset(snapshot.end_offset), snapshot.epoch) if snapshot.end_offset >= 0 else None,
            told_endpoints(self._peers.own.endpoints, leader_id, reply.node_endpoints),
        )
        return event, records
