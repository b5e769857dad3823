"""`ottla nodes`: nodes that come and go, are emptied, replaced and restarted."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated, Final

import typer

from ottla.cli import carried, draining, moving, output, restarting, votes
from ottla.cli.asking import ask
from ottla.cli.balance import (
    AT_ONCE,
    AtOnceOption,
    DryRunOption,
    SampleOption,
    ThrottleOption,
    bring_leaders_home,
    even_out,
)
from ottla.cli.carried import SAMPLE_S, Carried
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.mover import Mover
from ottla.cli.options import JsonOption, YesOption
from ottla.client.settings import split_address
from ottla.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

POLL_S: Final = 0.5

app = typer.Typer(
    help="The nodes of a cluster: added, emptied, removed, replaced, restarted.",
    no_args_is_help=True,
    epilog=examples(
        "ottla nodes list",
        "ottla nodes drain 3 --dry-run",
        "ottla nodes remove 3",
        "ottla nodes restart --rolling --with 'ssh {host} systemctl restart ottla'",
    ),
)

NodeArgument = Annotated[
    int, typer.Argument(metavar="NODE", min=0, help="Its node.id.", show_default=False)
]
ShareRacksOption = Annotated[
    bool,
    typer.Option("--share-racks", help="Two replicas may get into one rack where it must be."),
]
VoterOption = Annotated[
    str | None,
    typer.Option(
        "--voter",
        metavar="HOST:PORT",
        help="Give it a vote on the metadata, too: where controllers reach it.",
    ),
]
WithOption = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="COMMAND",
        help="What does it, with {node}, {host} and {port} for the node's; run by the shell.",
    ),
]
DataDirOption = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help="Of a cluster that `ottla cluster up` runs."),
]


@app.command("list", epilog=examples("ottla nodes list", "ottla nodes list --json"))
@on_cluster
def show(cluster: Cluster, as_json: JsonOption = False) -> None:
    """Shows each node: where it is, whether it serves, votes or is drained, and what it holds."""
    with Mover(cluster) as mover:
        now = carried.look(mover)
        seen, _ = mover.look()
    quorum = votes.describe(cluster).result
    voters = {voter.replica_id for voter in quorum.current_voters}
    led = Counter(each.leader for each in seen.values())
    rows = []
    for node_id in sorted({*now.nodes, *voters}):
        node, held = now.nodes.get(node_id), now.held_by(node_id)
        rows.append(
            {
                "node": node_id,
                "address": None if node is None else f"{node.host}:{node.port}",
                "rack": None if node is None else node.rack,
                "state": _state(now, node_id),
                "votes": node_id in voters,
                "leads_metadata": node_id == quorum.leader_id,
                "leaders": led[node_id],
                "replicas": len(held),
                "bytes": sum(now.partitions[place].size_bytes for place in held),
            }
        )
    output.show(rows, as_json=as_json)


def _state(now: Carried, node_id: int) -> str:
    node = now.nodes.get(node_id)
    if node is None:
        return "controller"
    if node.is_fenced:
        return "fenced"
    if node_id in now.drained:
        is_empty = not now.held_by(node_id) and not any(
            node_id in ongoing.removing for ongoing in now.moving.values()
        )
        return "drained" if is_empty else "draining"
    return "serving"


@app.command(
    "add",
    epilog=examples("ottla nodes add 4 --throttle 20M", "ottla nodes add 4 --voter 10.0.0.4:9093"),
)
@on_cluster
def add(
    cluster: Cluster,
    node: NodeArgument,
    voter: VoterOption = None,
    dry_run: DryRunOption = False,
    throttle: ThrottleOption = None,
    at_once: AtOnceOption = AT_ONCE,
    sample_s: SampleOption = SAMPLE_S,
    yes: YesOption = False,
) -> None:
    """Gives a node that was started its share of the partitions, and a vote if it is to have one.

    Of a node that is not there it says how to start it. `ottla nodes drain` undoes it.
    """
    rate = None if throttle is None else moving.rate_of(throttle)
    address = None if voter is None else _address(voter)
    with Mover(cluster) as mover:
        known = mover.nodes().get(node)
        if known is None or known.is_fenced:
            raise CommandFailed(_how_to_start(cluster, node))
        if not dry_run:
            if node in mover.drained():
                mover.set_drained(node, drained=False)
            if address is not None:
                _vote(cluster, node, address)
        even_out(mover, carried.look(mover, sample_s), rate, at_once, dry_run=dry_run, yes=yes)


def _how_to_start(cluster: Cluster, node: int) -> str:
    reply = ask(cluster, DescribeClusterRequest(), DescribeClusterResponse)
    quorum = votes.describe(cluster)
    controllers = ",".join(f"{host}:{port}" for _, host, port in quorum.endpoints.values())
    return (
        f"Node {node} does not serve. On its host:\n"
        f"  ottla storage format --cluster-id {reply.cluster_id} --node-id {node} "
        "--data-dir DIR --no-initial-controllers\n"
        f"  ottla start --node-id {node} --data-dir DIR --listen HOST:PORT "
        f"--set controller.quorum.bootstrap.servers={controllers or 'HOST:PORT'}"
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise WrongUsage(f"--voter {text} is no address; write HOST:PORT.")
    return split_address(text)


def _vote(cluster: Cluster, node: int, address: tuple[str, int]) -> None:
    voters = votes.describe(cluster).result.current_voters
    if node not in {voter.replica_id for voter in voters}:
        votes.give(cluster, node, *address)
        output.say(f"Node {node} votes now.")


@app.command(
    "drain",
    epilog=examples(
        "ottla nodes drain 3 --dry-run",
        "ottla nodes drain 3 --throttle 20M",
        "ottla nodes drain 3 --undo",
    ),
)
@on_cluster
def drain(
    cluster: Cluster,
    node: NodeArgument,
    dry_run: DryRunOption = False,
    throttle: ThrottleOption = None,
    at_once: AtOnceOption = AT_ONCE,
    share_racks: ShareRacksOption = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="It keeps what has not left, and gets new ones again.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Moves everything away from a node, dead or alive, which then gets no new partitions.

    Where a partition has nowhere to go, it says which, and changes nothing. Ctrl-C begins no more
    moves; the next `drain` goes on, --undo takes back what has not arrived.
    """
    rate = None if throttle is None else moving.rate_of(throttle)
    with Mover(cluster) as mover:
        now = carried.look(mover)
        draining.check_known(now, node)
        if undo:
            draining.undo(mover, now, node)
            return
        moves = draining.evacuation(now, node, may_share_racks=share_racks)
        if moves:
            moving.tell(moves, now.sizes(), rate)
        if dry_run:
            return
        output.confirm(f"Move {len(moves)} partition(s) from node {node}?", yes=yes)
        draining.empty(mover, now, node, moves, rate, at_once, may_share_racks=share_racks)


@app.command(
    "remove",
    epilog=examples(
        "ottla nodes remove 3", "ottla nodes remove 3 --with 'ssh {host} systemctl stop ottla'"
    ),
)
@on_cluster
def remove(
    cluster: Cluster,
    node: NodeArgument,
    command: WithOption = None,
    patience_s: Annotated[
        float,
        typer.Option("--patience", min=0, metavar="SECONDS", help="How long to wait for its stop."),
    ] = 600.0,
    yes: YesOption = False,
) -> None:
    """Takes the vote from a drained node, waits until it is stopped, and forgets it.

    A node with partitions is refused, and so is the last voter. Started again, it registers anew:
    `ottla nodes add` gives it its share.
    """
    with Mover(cluster) as mover:
        now = carried.look(mover)
        draining.check_known(now, node)
        held = now.held_by(node)
        if held:
            raise CommandFailed(
                f"Node {node} has {len(held)} partition(s); `ottla nodes drain {node}` first."
            )
        output.confirm(f"Remove node {node} from the cluster?", yes=yes)
        _take_vote(cluster, node)
        known = mover.nodes().get(node)
        if known is not None and not known.is_fenced:
            if command is not None:
                restarting.run(command, known)
            else:
                output.say(f"Stop node {node} now, such as by `systemctl stop ottla`.")
            _await_stop(mover, node, patience_s)
        if node in mover.nodes():
            mover.unregister(node)
        if node in mover.drained():
            mover.set_drained(node, drained=False)
    output.say(f"Node {node} is no part of the cluster any more.")


def _take_vote(cluster: Cluster, node: int) -> None:
    voters = votes.describe(cluster).result.current_voters
    own = [voter for voter in voters if voter.replica_id == node]
    if own and len(voters) == 1:
        raise CommandFailed(
            f"Node {node} is the last voter; give another one its vote first: "
            "`ottla quorum add-voter ID@HOST:PORT`."
        )
    for voter in own:
        votes.take(cluster, node, voter.replica_directory_id)
        output.say(f"Node {node} votes no more; {len(voters) - 1} are left.")


def _await_stop(mover: Mover, node: int, patience_s: float) -> None:
    until_s = time.monotonic() + patience_s
    while (known := mover.nodes().get(node)) is not None and not known.is_fenced:
        if time.monotonic() > until_s:
            raise CommandFailed(f"Node {node} still serves; stop it, and type this again.")
        time.sleep(POLL_S)


@app.command(
    "replace",
    epilog=examples(
        "ottla nodes replace 3 --by 6 --throttle 50M",
        "ottla nodes replace 3",
        "ottla nodes replace 3 --voter 10.0.0.3:9093",
    ),
)
@on_cluster
def replace(
    cluster: Cluster,
    node: NodeArgument,
    by: Annotated[
        int | None,
        typer.Option("--by", metavar="NODE", help="The node that gets all; else the same number."),
    ] = None,
    voter: VoterOption = None,
    throttle: ThrottleOption = None,
    at_once: AtOnceOption = AT_ONCE,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Another node takes the place of one: all its partitions, and its vote.

    Without --by it is a new machine, or an empty disk, under the old number: it is refilled by
    itself, and the command waits for that.
    """
    rate = None if throttle is None else moving.rate_of(throttle)
    address = None if voter is None else _address(voter)
    with Mover(cluster) as mover:
        now = carried.look(mover)
        draining.check_known(now, node)
        if by is None or by == node:
            _refill(cluster, mover, now, node, address)
            return
        after = _replaced(now, node, by)
        moves = now.moves(after)
        if moves:
            moving.tell(moves, now.sizes(), rate)
        if dry_run:
            return
        output.confirm(f"Move {len(moves)} partition(s) from node {node} to {by}?", yes=yes)
        if address is not None:
            _vote(cluster, by, address)
        draining.empty(mover, now, node, moves, rate, at_once, may_share_racks=False)
        bring_leaders_home(mover)
        if address is not None:
            _take_vote(cluster, node)
    output.say(f"`ottla nodes remove {node}` forgets it.")


def _replaced(now: Carried, node: int, by: int) -> dict[tuple[str, int], tuple[int, ...]]:
    """The new one gets everything; CommandFailed where it cannot."""
    new = now.nodes.get(by)
    if new is None or new.is_fenced or by in now.drained:
        raise CommandFailed(f"Node {by} does not serve, or is drained; `ottla nodes list` tells.")
    sites = {site.id: site for site in now.sites}
    after = {}
    for place in now.held_by(node):
        replicas = now.partitions[place].replicas
        others = [sites[each] for each in replicas if each != node and each in sites]
        name = f"{place[0]}-{place[1]}"
        if by in replicas or now.partitions[place].is_fixed:
            raise CommandFailed(
                f"{name} is on node {by} already, is on its way, or has no leader; `ottla nodes "
                f"drain {node}` finds a place for each."
            )
        here = sites[by]
        if here.host is not None and any(each[1:] == here[1:] for each in others):
            raise CommandFailed(f"{name} has a replica on the host of node {by}.")
        racks = {each.rack for each in others}
        before = racks | ({sites[node].rack} if node in sites else set())
        if len(racks | {here.rack}) < len(before):
            raise CommandFailed(f"{name} has a replica in the rack of node {by}.")
        after[place] = tuple(by if each == node else each for each in replicas)
    return after


def _refill(
    cluster: Cluster, mover: Mover, now: Carried, node: int, address: tuple[str, int] | None
) -> None:
    known = now.nodes.get(node)
    if known is None or known.is_fenced:
        raise CommandFailed(_how_to_start(cluster, node))
    if address is not None:
        _revote(cluster, node, address)
    held = set(now.held_by(node))
    with moving.progress(len(held)) as advance:
        while True:
            seen, _ = mover.look()
            left = [place for place in held if place in seen and node not in seen[place].isr]
            advance(len(held) - len(left))
            if not left:
                break
            time.sleep(POLL_S)
    output.say(f"Node {node} has all its {len(held)} partition(s), in sync.")


def _revote(cluster: Cluster, node: int, address: tuple[str, int]) -> None:
    """A vote that is with the old disk is taken from it first: it counts for the majority."""
    result = votes.describe(cluster).result
    disks = {each.replica_directory_id for each in result.observers if each.replica_id == node}
    old = [each for each in result.current_voters if each.replica_id == node]
    if disks:
        for voter in old:
            votes.take(cluster, node, voter.replica_directory_id)
        votes.give(cluster, node, *address)
        output.say(f"Node {node} votes with its new disk.")


@app.command(
    "restart",
    epilog=examples(
        "ottla nodes restart --rolling --data-dir ./cluster",
        "ottla nodes restart --rolling --with 'ssh {host} systemctl restart ottla'",
        "ottla nodes restart 2 --with 'ssh {host} systemctl restart ottla'",
    ),
)
@on_cluster
def restart(
    cluster: Cluster,
    nodes: Annotated[
        list[int] | None, typer.Argument(metavar="[NODE]...", show_default=False)
    ] = None,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="All nodes, one after the other.")
    ] = False,
    command: WithOption = None,
    data_dir: DataDirOption = None,
    patience_s: Annotated[
        float,
        typer.Option("--patience", min=1, metavar="SECONDS", help="For each step of a node."),
    ] = 600.0,
    yes: YesOption = False,
) -> None:
    """Restarts nodes one by one, so that clients notice nothing but a short pause.

    The next has its turn when the one before is in sync with everything and leads again what it
    led; who leads the metadata comes last. Ctrl-C stops before the next step; typed again, it
    begins anew. Afterwards `ottla features upgrade` raises the level, if the version is a new one.
    """
    if bool(nodes) == rolling:
        raise WrongUsage("Name the nodes, or give --rolling for all of them.")
    if (command is None) == (data_dir is None):
        raise WrongUsage("Say how: --with COMMAND, or --data-dir of a local cluster.")
    with Mover(cluster) as mover:
        restarting.restart(cluster, mover, nodes or (), command, data_dir, patience_s, yes=yes)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="nodes")
