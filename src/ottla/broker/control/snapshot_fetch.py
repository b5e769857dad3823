"""A snapshot of the metadata on its way from the leader, piece by piece (KIP-630).

The pieces are gathered in a file that nobody takes for a snapshot. A lost connection costs the
piece that was under way; another leader, or one that has removed it, a new beginning.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.control.quorum_peers import QuorumPeers, told_endpoints
from ottla.cluster.snapshot_file import DamagedSnapshot, SnapshotId
from ottla.errors import ErrorCode
from ottla.quorum.events import FetchAnswered, SnapshotFetched
from ottla.types import METADATA_TOPIC, NO_OFFSET, NodeId
from ottla.wire.messages import fetch_snapshot as wire

if TYPE_CHECKING:
    from ottla.broker.control.metadata_quorum import MetadataQuorum

logger = logging.getLogger(__name__)

PIECE_BYTES_MAX: Final = 1024 * 1024
PAUSE_S: Final = 0.05
# The leader has no such snapshot any more, or another one of this name: ask it what it has.
OVER: Final = (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)


class SnapshotFetch:
    def __init__(self, quorum: MetadataQuorum, peers: QuorumPeers, id: SnapshotId) -> None:
        self._quorum = quorum
        self._peers = peers
        self._id = id
        self._position = 0

    async def go_on(self, leader_id: NodeId, epoch: int) -> bool:
        """Fetches one piece more; True when there is nothing more to do."""
        request = self._request(epoch)
        log = self._quorum.log_end()
        reply = await self._peers.fetch_snapshot(leader_id, request)
        piece = None if reply.error_code else reply.topics[0].partitions[0]
        error = ErrorCode(reply.error_code if piece is None else piece.error_code)
        if piece is not None:
            known = piece.current_leader
            told_id = NodeId(known.leader_id)
            endpoints = told_endpoints(self._peers.own.endpoints, told_id, reply.node_endpoints)
            await self._quorum.ask(
                FetchAnswered(
                    log.end_offset,
                    log.last_epoch,
                    error,
                    known.leader_epoch,
                    told_id,
                    NO_OFFSET,
                    endpoints=endpoints,
                )
            )
        if error is not ErrorCode.NONE:
            await asyncio.sleep(PAUSE_S)
            return error in OVER
        return await self._take(piece, leader_id, epoch)

    def _request(self, epoch: int) -> wire.FetchSnapshotRequest:
        own = self._peers.own.key
        asked = wire.FetchSnapshotPartition(
            partition=0,
            current_leader_epoch=epoch,
            snapshot_id=wire.SnapshotId(*self._id),
            position=self._position,
            replica_directory_id=own.directory_id,
        )
        return wire.FetchSnapshotRequest(
            cluster_id=self._peers.cluster_id,
            replica_id=own.id,
            max_bytes=PIECE_BYTES_MAX,
            topics=[wire.FetchSnapshotTopic(METADATA_TOPIC, [asked])],
        )

    async def _take(self, piece: Any, leader_id: NodeId, epoch: int) -> bool:
        snapshots, data = self._quorum.snapshots, bytes(piece.unaligned_records)
        told = (piece.snapshot_id.end_offset, piece.snapshot_id.epoch, piece.position)
        if told != (*self._id, self._position) or not data:
            logger.error(
                "the leader sends %d bytes of snapshot %s, not %s", len(data), told, self._id
            )
            await asyncio.sleep(PAUSE_S)
            return True
        await snapshots.add_piece(self._id, self._position, data)
        self._position += len(data)
        if self._position < piece.size:
            return False
        try:
            snapshot = await snapshots.check_pieces(self._id)
        except DamagedSnapshot as error:
            logger.error("snapshot %s of node %d is fetched again: %s", self._id, leader_id, error)
            await snapshots.forget_pieces(self._id)
            await asyncio.sleep(PAUSE_S)
            return True
        self._quorum.fetched = snapshot
        await self._quorum.ask(SnapshotFetched(epoch, leader_id, *self._id))
        return True
