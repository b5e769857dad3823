"""`ottla quorum`: who votes on the metadata of the cluster, added and removed while it runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import typer

from ottla.cli import output
from ottla.cli.asking import ask
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.options import JsonOption, YesOption
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
NO_DIRECTORY: Final = bytes(16)
PAUSE_S: Final = 0.5
_DIRECTORY: Final = r"(?::([\w-]{22}))?"
_ADDED: Final = re.compile(r"(\d+)@(\[[0-9a-fA-F:.]+\]|[^\s:@]+):(\d+)" + _DIRECTORY)
_REMOVED: Final = re.compile(r"(\d+)" + _DIRECTORY)

app = typer.Typer(
    help="The controllers that vote on the metadata: added and removed while the cluster runs.",
    no_args_is_help=True,
    epilog=examples(
        "ottla quorum status",
        "ottla quorum add-voter 4@10.0.0.4:9093",
        "ottla quorum remove-voter 2",
    ),
)


class Seen(NamedTuple):
    """The quorum as its leader describes it."""

    result: DescribeQuorumPartitionResult
    endpoints: dict[int, tuple[str, str, int]]


@app.command("status", epilog=examples("ottla quorum status", "ottla quorum status --json"))
@on_cluster
def status(cluster: Cluster, as_json: JsonOption = False) -> None:
    """Shows who leads, who votes and who only follows, and how far each has come."""
    seen = _describe(cluster)
    result = seen.result
    facts = {
        "leader": result.leader_id,
        "epoch": result.leader_epoch,
        "high_watermark": result.high_watermark,
        "kraft_version": _kraft_version(cluster),
    }
    rows = [_row(replica, "voter", seen) for replica in result.current_voters]
    rows += [_row(replica, "observer", seen) for replica in result.observers]
    if as_json:
        output.show([{**facts, "replicas": rows}], as_json=True)
        return
    for name, value in facts.items():
        output.write(f"{name.replace('_', ' '):<14}  {value}\n".encode())
    output.write(b"\n")
    output.show(rows, as_json=False)


def _row(replica: QuorumReplica, role: str, seen: Seen) -> dict[str, Any]:
    result, end_offset = seen.result, replica.log_end_offset
    leader = next(each for each in result.current_voters if each.replica_id == result.leader_id)
    endpoint = seen.endpoints.get(replica.replica_id) if role == "voter" else None
    has_directory = replica.replica_directory_id != NO_DIRECTORY
    return {
        "node": replica.replica_id,
        "role": "leader" if replica is leader else role,
        "end_offset": end_offset if end_offset >= 0 else None,
        "lag": leader.log_end_offset - end_offset if end_offset >= 0 else None,
        "address": None if endpoint is None else f"{endpoint[1]}:{endpoint[2]}",
        "directory_id": encode_uuid(replica.replica_directory_id) if has_directory else None,
    }


@app.command(
    "add-voter",
    epilog=examples(
        "ottla quorum add-voter 4@10.0.0.4:9093",
        "ottla quorum add-voter 4@10.0.0.4:9093:mWdVG4vBSwKBYqnJNJVZHQ",
    ),
)
@on_cluster
def add_voter(
    cluster: Cluster,
    voter: Annotated[
        str,
        typer.Argument(
            metavar="ID@HOST:PORT[:DIRECTORY_ID]",
            help="Its node.id, where controllers reach it, and its disk if it is not plain.",
            show_default=False,
        ),
    ],
) -> None:
    """Gives a vote to a controller that follows the metadata already.

    Start it first, with controller.quorum.bootstrap.servers and a directory that was formatted with
    --no-initial-controllers. One at a time: the next one waits for this one.
    """
    match = _ADDED.fullmatch(voter)
    if match is None:
        raise WrongUsage(f"{voter} is no voter; write ID@HOST:PORT, such as 4@10.0.0.4:9093.")
    node_id, host, port, directory = int(match[1]), match[2].strip("[]"), int(match[3]), match[4]
    seen = _describe(cluster)
    replicas = [*seen.result.observers, *seen.result.current_voters]
    directory_id = _directory_of(node_id, directory, replicas, "follows the metadata")
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
    output.say(f"Node {node_id} votes now.")


@app.command(
    "remove-voter",
    epilog=examples("ottla quorum remove-voter 2", "ottla quorum remove-voter 2 --yes"),
)
@on_cluster
def remove_voter(
    cluster: Cluster,
    voter: Annotated[
        str,
        typer.Argument(
            metavar="ID[:DIRECTORY_ID]",
            help="Its node.id, and its disk if it is not plain.",
            show_default=False,
        ),
    ],
    yes: YesOption = False,
) -> None:
    """Takes the vote from a controller, dead or alive; the last one keeps it.

    A node that lives goes on without a vote. If it leads, another one is elected.
    """
    match = _REMOVED.fullmatch(voter)
    if match is None:
        raise WrongUsage(f"{voter} is no voter; write its node.id, such as 2.")
    node_id = int(match[1])
    voters = _describe(cluster).result.current_voters
    directory_id = _directory_of(node_id, match[2], voters, "votes")
    left = len(voters) - 1
    output.confirm(f"Take the vote from node {node_id}? {left} will be left.", yes=yes)
    request = removing.RemoveRaftVoterRequest(None, node_id, directory_id)

    def attempt() -> tuple[int, str | None]:
        reply = ask(cluster, request, removing.RemoveRaftVoterResponse)
        return reply.error_code, reply.error_message

    _insist(cluster, attempt, ErrorCode.VOTER_NOT_FOUND)
    output.say(f"Node {node_id} votes no more.")


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


def _directory_of(
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


def _describe(cluster: Cluster) -> Seen:
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


def _kraft_version(cluster: Cluster) -> int:
    reply = ask(cluster, ApiVersionsRequest(SOFTWARE, "1"), ApiVersionsResponse)
    levels = {each.name: each.max_version_level for each in reply.finalized_features}
    return levels.get(KRAFT_VERSION, 0)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="quorum")
