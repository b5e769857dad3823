"""`ottla quorum`: who votes on the metadata of the cluster, added and removed while it runs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from ottla.cli import output, votes
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.failures import WrongUsage
from ottla.cli.help import examples
from ottla.cli.options import JsonOption, YesOption
from ottla.log.directory import encode_uuid
from ottla.wire.messages.describe_quorum import QuorumReplica

NO_DIRECTORY: Final = bytes(16)
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


@app.command("status", epilog=examples("ottla quorum status", "ottla quorum status --json"))
@on_cluster
def status(cluster: Cluster, as_json: JsonOption = False) -> None:
    """Shows who leads, who votes and who only follows, and how far each has come."""
    seen = votes.describe(cluster)
    result = seen.result
    facts = {
        "leader": result.leader_id,
        "epoch": result.leader_epoch,
        "high_watermark": result.high_watermark,
        "kraft_version": votes.kraft_version(cluster),
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


def _row(replica: QuorumReplica, role: str, seen: votes.Seen) -> dict[str, Any]:
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
    votes.give(cluster, node_id, host, port, directory)
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
    voters = votes.describe(cluster).result.current_voters
    directory_id = votes.directory_of(node_id, match[2], voters, "votes")
    left = len(voters) - 1
    output.confirm(f"Take the vote from node {node_id}? {left} will be left.", yes=yes)
    votes.take(cluster, node_id, directory_id)
    output.say(f"Node {node_id} votes no more.")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="quorum")
