"""The other voters, as this node speaks to them: two connections to each, since a fetch waits at
its leader, and a vote must not wait with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from ottla.client.connection import Connection
from ottla.client.failures import CannotConnect, ClientFailed
from ottla.client.settings import ClientSettings, join_address
from ottla.errors import ErrorCode
from ottla.quorum.decisions import AnnounceEpoch, AskUpdate, AskVote, EndEpoch
from ottla.quorum.events import (
    Acknowledged,
    Event,
    RequestFailed,
    UpdateAnswered,
    VoteAnswered,
)
from ottla.quorum.times import Times
from ottla.quorum.voters import Endpoint, Voter
from ottla.types import METADATA_TOPIC, NODE_SOFTWARE, NodeId
from ottla.wire.messages import begin_quorum_epoch as begin
from ottla.wire.messages import end_quorum_epoch as end
from ottla.wire.messages import update_raft_voter as update
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from ottla.wire.messages.vote import VotePartition, VoteRequest, VoteResponse, VoteTopic
from ottla.wire.schema import Message

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)

TALK: Final = "talk"
FETCH: Final = "fetch"
# As in Kafka, who is known by an address alone has an id below those of nodes, and of nobody.
FIRST_STRANGER: Final = -2
Ask = AskVote | AnnounceEpoch | EndEpoch | AskUpdate


class QuorumPeers:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        own: Voter,
        cluster_id: str,
        times: Times,
        strangers: Sequence[Endpoint] = (),
    ) -> None:
        """`strangers` are addresses of controllers whose ids nobody has said."""
        self._loop = loop
        self.own = own
        self.cluster_id = cluster_id
        self.times = times
        # Of voters as their records have them, and where each node was last said to be.
        self._recorded: dict[NodeId, tuple[Endpoint, ...]] = {}
        self._strangers = [NodeId(FIRST_STRANGER - at) for at in range(len(strangers))]
        self._endpoints: dict[NodeId, tuple[Endpoint, ...]] = {
            node_id: (endpoint,)
            for node_id, endpoint in zip(self._strangers, strangers, strict=True)
        }
        self._connections: dict[tuple[NodeId, str], Connection] = {}
        self._opening: dict[tuple[NodeId, str], asyncio.Lock] = {}
        self._asking: dict[asyncio.Task[None], None] = {}
        # Told of a node that belongs to another cluster; what else it says does not count.
        self.on_stranger: Callable[[NodeId], None] = lambda node_id: None
        self._settings = ClientSettings(
            (),
            f"node-{own.key.id}",
            NODE_SOFTWARE,
            connect_timeout_s=times.request_timeout_ms / 1000,
            request_timeout_s=times.request_timeout_ms / 1000,
        )

    @property
    def others(self) -> list[NodeId]:
        """Whom to ask who leads: the voters, and who was named without saying which node it is."""
        known = [*self._recorded, *self._strangers]
        return [node_id for node_id in known if node_id != self.own.key.id]

    def addresses(self) -> str:
        """Those of all others, for people."""
        known = (self.address_of(node_id) for node_id in self.others)
        return ", ".join(address for address in known if address is not None)

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        endpoints = self._endpoints.get(node_id)
        if node_id == self.own.key.id:
            endpoints = self.own.endpoints or endpoints
        return endpoints[0] if endpoints else None

    def address_of(self, node_id: NodeId) -> str | None:
        endpoint = self.endpoint_of(node_id)
        return None if endpoint is None else join_address(endpoint.host, endpoint.port)

    def set_voters(self, voters: Iterable[Voter]) -> None:
        """Who votes now, and where each is; one that is no more may still lead for a moment."""
        recorded = {voter.key.id: voter.endpoints for voter in voters if voter.endpoints}
        for node_id, endpoints in recorded.items():
            if self._recorded.get(node_id) != endpoints:
                self._endpoints[node_id] = endpoints
        self._recorded = recorded

    def learn(self, node_id: NodeId, endpoints: tuple[Endpoint, ...]) -> None:
        """A leader has said where it is."""
        if endpoints:
            self._endpoints[node_id] = endpoints

    # ------------------------------------------------------------------------------- asking

    def send(self, decision: Ask, tell: Callable[[Event], None]) -> None:
        """The answer, or that there is none, is told as an event."""
        task = self._loop.create_task(self._ask(decision, tell))
        self._asking[task] = None
        task.add_done_callback(self._asking.pop)

    async def all_answered(self, timeout_s: float) -> None:
        """Returns when no request is under way, or after so long."""
        if self._asking:
            await asyncio.wait(self._asking, timeout=timeout_s)

    async def _ask(self, decision: Ask, tell: Callable[[Event], None]) -> None:
        peer = decision.leader_id if isinstance(decision, AskUpdate) else decision.peer.id
        try:
            if isinstance(decision, AskVote):
                event = await self._ask_vote(decision)
            elif isinstance(decision, AskUpdate):
                event = await self._update(decision)
            elif isinstance(decision, AnnounceEpoch):
                event = await self._announce(decision)
            else:
                event = await self._end(decision)
        except (ClientFailed, LookupError) as error:
            logger.debug("no answer of voter %d: %s", peer, error)
            event = RequestFailed(peer)
        tell(event)

    async def _ask_vote(self, decision: AskVote) -> Event:
        own, peer = self.own.key, decision.peer
        asked = VotePartition(
            replica_epoch=decision.epoch,
            replica_id=own.id,
            replica_directory_id=own.directory_id,
            voter_directory_id=peer.directory_id,
            last_offset_epoch=decision.last_epoch,
            last_offset=decision.last_offset,
            pre_vote=decision.pre_vote,
        )
        topics = [VoteTopic(METADATA_TOPIC, [asked])]
        reply = await self._exchange(
            peer.id, TALK, VoteRequest(self.cluster_id, peer.id, topics), VoteResponse
        )
        if reply.error_code:
            return RequestFailed(peer.id)
        result = reply.topics[0].partitions[0]
        if self.is_of_another_cluster(peer.id, result.error_code):
            return RequestFailed(peer.id)
        leader_id = NodeId(result.leader_id)
        return VoteAnswered(
            peer.id,
            decision.epoch,
            decision.pre_vote,
            ErrorCode(result.error_code),
            result.leader_epoch,
            leader_id,
            result.vote_granted,
            self._told_endpoints(leader_id, reply.node_endpoints),
        )

    async def _announce(self, decision: AnnounceEpoch) -> Event:
        own, peer = self.own, decision.peer
        asked = begin.BeginQuorumEpochPartition(0, peer.directory_id, own.key.id, decision.epoch)
        request = begin.BeginQuorumEpochRequest(
            self.cluster_id,
            peer.id,
            [begin.BeginQuorumEpochTopic(METADATA_TOPIC, [asked])],
            [begin.LeaderEndpoint(*endpoint) for endpoint in own.endpoints],
        )
        reply = await self._exchange(peer.id, TALK, request, begin.BeginQuorumEpochResponse)
        return self._acknowledged(peer.id, reply)

    async def _end(self, decision: EndEpoch) -> Event:
        own, peer = self.own, decision.peer
        asked = end.EndQuorumEpochPartition(
            partition_index=0,
            leader_id=own.key.id,
            leader_epoch=decision.epoch,
            preferred_successors=[key.id for key in decision.successors],
            preferred_candidates=[end.PreferredCandidate(*key) for key in decision.successors],
        )
        request = end.EndQuorumEpochRequest(
            self.cluster_id,
            [end.EndQuorumEpochTopic(METADATA_TOPIC, [asked])],
            [end.LeaderEndpoint(*endpoint) for endpoint in own.endpoints],
        )
        reply = await self._exchange(peer.id, TALK, request, end.EndQuorumEpochResponse)
        return self._acknowledged(peer.id, reply)

    async def _update(self, decision: AskUpdate) -> Event:
        voter = decision.voter
        request = update.UpdateRaftVoterRequest(
            self.cluster_id,
            decision.epoch,
            voter.key.id,
            voter.key.directory_id,
            [update.VoterListener(*endpoint) for endpoint in voter.endpoints],
            update.KRaftVersionFeature(voter.kraft_version_min, voter.kraft_version_max),
        )
        leader_id = decision.leader_id
        reply = await self._exchange(leader_id, TALK, request, update.UpdateRaftVoterResponse)
        return UpdateAnswered(leader_id, decision.epoch, ErrorCode(reply.error_code))

    def _acknowledged(
        self, peer: NodeId, reply: begin.BeginQuorumEpochResponse | end.EndQuorumEpochResponse
    ) -> Event:
        if reply.error_code:
            return RequestFailed(peer)
        result = reply.topics[0].partitions[0]
        if self.is_of_another_cluster(peer, result.error_code):
            return RequestFailed(peer)
        leader_id = NodeId(result.leader_id)
        return Acknowledged(
            peer,
            ErrorCode(result.error_code),
            result.leader_epoch,
            leader_id,
            self._told_endpoints(leader_id, reply.node_endpoints),
        )

    def is_of_another_cluster(self, peer: NodeId, code: int) -> bool:
        if code != ErrorCode.INCONSISTENT_CLUSTER_ID:
            return False
        self.on_stranger(peer)
        return True

    def _told_endpoints(self, node_id: NodeId, nodes: Iterable[object]) -> tuple[Endpoint, ...]:
        """Where an answer says that the leader is."""
        return told_endpoints(self.own.endpoints, node_id, nodes)

    async def fetch(self, node_id: NodeId, request: FetchRequest, wait_ms: int) -> FetchResponse:
        timeout_s = (wait_ms + self.times.request_timeout_ms) / 1000
        return await self._exchange(node_id, FETCH, request, FetchResponse, timeout_s)

    async def fetch_snapshot(
        self, node_id: NodeId, request: FetchSnapshotRequest
    ) -> FetchSnapshotResponse:
        return await self._exchange(node_id, FETCH, request, FetchSnapshotResponse)

    async def _exchange(
        self,
        node_id: NodeId,
        lane: str,
        request: Message,
        kind: type[R],
        timeout_s: float | None = None,
    ) -> R:
        connection = await self._connected(node_id, lane)
        return await connection.ask(request, kind, timeout_s=timeout_s)

    async def _connected(self, node_id: NodeId, lane: str) -> Connection:
        key = (node_id, lane)
        async with self._opening.setdefault(key, asyncio.Lock()):
            address = self.address_of(node_id)
            if address is None:
                raise CannotConnect(f"nobody has said where node {node_id} is")
            connection = self._connections.get(key)
            if connection is not None:
                if connection.is_usable and connection.address == address:
                    return connection
                connection.abort("another one is opened")
            connection = await Connection.open(address, self._settings)
            self._connections[key] = connection
            return connection

    def close(self) -> None:
        for task in self._asking:
            task.cancel()
        for connection in self._connections.values():
            connection.abort("this node stops")
        self._connections.clear()


def told_endpoints(
    own: tuple[Endpoint, ...], node_id: NodeId, nodes: Iterable[object]
) -> tuple[Endpoint, ...]:
    name = own[0].name if own else ""
    return tuple(
        Endpoint(name, node.host, node.port)  # type: ignore[attr-defined]
        for node in nodes
        if node.node_id == node_id  # type: ignore[attr-defined]
    )
