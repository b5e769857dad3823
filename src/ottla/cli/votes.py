"""Votes on the metadata: who has one, giving and taking one while the cluster runs (KIP-853)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.cli.asking import ask
from ottla.cli.clients import Cluster
from ottla.cli.failures import CommandFailed
from ottla.client.settings import SOFTWARE
from ottla.cluster.features import KRAFT_VERSION
from ottla.errors import ErrorCode, error_of
from ottla.log.directory import decode_uuid, encode_uuid
from ottla.types import METADATA_TOPIC
from ottla.wire.messages import add_raft_voter as adding
from ottla.wire.messages import remove_raft_voter as removing
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumPartitionResult,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
    QuorumReplica,
)

LISTENER: Final = "CONTROLLER"
PAUSE_S: Final = 0.5


class Seen(NamedTuple):
    """The quorum as its leader describes it."""

    result: DescribeQuorumPartitionResult
    endpoints: dict[int, tuple[str, str, int]]


def give(
    cluster: Cluster, node_id: int, host: str, port: int, directory: str | None = None
) -> None:
    """To a controller that follows the metadata; returns when it has it."""
    seen = describe(cluster)
    replicas = [*seen.result.observers, *seen.result.current_voters]
    directory_id = directory_of(node_id, directory, replicas, "follows the metadata")
    name = next((endpoint[0] for endpoint in seen.endpoints.values()), LISTENER)
    request = adding.AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=int(cluster.timeout_s * 1000),
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=[adding.VoterListener(name, host, port)],
    )

    def attempt() -> tuple[int, str | None]:
        reply = ask(cluster, request, adding.AddRaftVoterResponse)
        return reply.error_code, reply.error_message

    _insist(cluster, attempt, ErrorCode.DUPLICATE_VOTER)


def take(cluster: Cluster, node_id: int, directory_id: bytes) -> None:
    """From a controller, dead or alive; the last one keeps it."""
    request = removing.RemoveRaftVoterRequest(None, node_id, directory_id)

    def attempt() -> tuple[int, str | None]:
        reply = ask(cluster, request, removing.RemoveRaftVoterResponse)
        return reply.error_code, reply.error_message

    _insist(cluster, attempt, ErrorCode.VOTER_NOT_FOUND)


def _insist(
    cluster: Cluster, attempt: Callable[[], tuple[int, str | None]], done: ErrorCode
) -> None:
    """Until the time is over, while another change is under way, or the node is catching up.

    What was asked before and not answered in time may have been done: then the error says so.
    """
    until_s = time.monotonic() + cluster.timeout_s
    is_first = True
    while True:
        code, message = attempt()
        if code == ErrorCode.NONE or (code == done and not is_first):
            return
        if code != ErrorCode.REQUEST_TIMED_OUT or time.monotonic() + PAUSE_S > until_s:
            raise CommandFailed(str(error_of(code, message)))
        is_first = False
        time.sleep(PAUSE_S)


def directory_of(
    node_id: int, given: str | None, replicas: list[QuorumReplica], deed: str
) -> bytes:
    """The disk that is meant: the one that is given, or the only one that the leader knows."""
    if given is not None:
        return decode_uuid(given)
    known = {each.replica_directory_id for each in replicas if each.replica_id == node_id}
    if not known:
        ids = ", ".join(str(each.replica_id) for each in replicas) or "nobody"
        raise CommandFailed(f"No node {node_id} {deed}, by what the leader knows: {ids}.")
    if len(known) > 1:
        names = ", ".join(encode_uuid(directory_id) for directory_id in sorted(known))
        raise CommandFailed(f"Node {node_id} has several disks ({names}); add :DIRECTORY_ID.")
    return known.pop()


def describe(cluster: Cluster) -> Seen:
    wanted = DescribeQuorumTopic(METADATA_TOPIC, [DescribeQuorumPartition(0)])
    reply = ask(cluster, DescribeQuorumRequest([wanted]), DescribeQuorumResponse)
    errors = [(reply.error_code, reply.error_message)]
    if not reply.error_code:
        result = reply.topics[0].partitions[0]
        errors.append((result.error_code, result.error_message))
    for code, message in errors:
        if code:
            raise CommandFailed(str(error_of(code, message)))
    endpoints = {
        node.node_id: (listener.name, listener.host, listener.port)
        for node in reply.nodes
        for listener in node.listeners[:1]
    }
    return Seen(reply.topics[0].partitions[0], endpoints)


def kraft_version(cluster: Cluster) -> int:
    reply = ask(cluster, ApiVersionsRequest(SOFTWARE, "1"), ApiVersionsResponse)
    levels = {each.name: each.max_version_level for each in reply.finalized_features}
    return levels.get(KRAFT_VERSION, 0)
