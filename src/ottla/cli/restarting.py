"""Restarting nodes one by one while clients go on."""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ottla.cli import output, votes
from ottla.cli.balance import PREFERRED
from ottla.cli.clients import Cluster
from ottla.cli.failures import CommandFailed
from ottla.cli.mover import Mover, Node
from ottla.types import NO_NODE

POLL_S: Final = 0.2
# Its end is a restart; nobody sends anything on it.
CONNECT_S_MAX: Final = 10.0


def restart(
    cluster: Cluster,
    mover: Mover,
    wanted: Sequence[int],
    command: str | None,
    data_dir: str | None,
    patience_s: float,
    *,
    yes: bool,
) -> None:
    known = mover.nodes()
    for node_id in wanted:
        if node_id not in known:
            raise CommandFailed(
                f"There is no node {node_id}; the cluster has {', '.join(map(str, known))}."
            )
    leader = votes.describe(cluster).result.leader_id
    # The leader of the metadata goes last: else the vote would go round with the restarts.
    order = sorted(wanted or known, key=lambda node_id: (node_id == leader, node_id))
    _await(partial(_why_not, mover), patience_s, "before the first restart")
    output.confirm(f"Restart {', '.join(map(str, order))}, one after the other?", yes=yes)
    for node_id in order:
        node = mover.nodes()[node_id]
        begun_s = time.monotonic()
        with _watched(node) as connection:
            _perform(node, command, data_dir)
            _await_end(connection, node, patience_s)
        when = f"after the restart of node {node_id}"
        _await(partial(_is_silent, node), patience_s, when)
        _await(partial(_why_not, mover), patience_s, when)
        _await(partial(_leaders_away, mover, node_id), patience_s, when)
        took_s = time.monotonic() - begun_s
        output.say(f"Node {node_id} is back, in sync and leading, after {took_s:.1f} s.")
    output.say(f"{len(order)} node(s) are restarted. `ottla features list` shows their levels.")


def run(command: str, node: Node) -> None:
    """The command that a person has given, with the node's names in it."""
    try:
        text = command.format(node=node.id, host=shlex.quote(node.host), port=node.port)
    except (KeyError, IndexError, ValueError):
        raise CommandFailed(f"--with {command} may name {{node}}, {{host}} and {{port}}.") from None
    ended = subprocess.run(text, shell=True, check=False)
    if ended.returncode:
        raise CommandFailed(f"`{text}` ended with exit code {ended.returncode}.")


def _perform(node: Node, command: str | None, data_dir: str | None) -> None:
    if command is not None:
        run(command, node)
        return
    from ottla.cli.supervisor.home import Home
    from ottla.cli.supervisor.requests import ask

    for deed in ("stop", "start"):
        answer = ask(Home(data_dir or ""), deed, (node.id,))
        if answer is None:
            raise CommandFailed(f"The cluster in {data_dir} does not run.")
        if answer["failed"]:
            raise CommandFailed("; ".join(answer["failed"]))


def _watched(node: Node) -> socket.socket:
    try:
        return socket.create_connection((node.host, node.port), CONNECT_S_MAX)
    except OSError as error:
        raise CommandFailed(f"Node {node.id} cannot be reached: {error.strerror}.") from None


def _await_end(connection: socket.socket, node: Node, patience_s: float) -> None:
    """A restart ends all connections, however long the command for it takes to have an effect."""
    connection.settimeout(patience_s)
    try:
        connection.recv(1)
    except TimeoutError:
        raise CommandFailed(f"Node {node.id} was not stopped by that.") from None
    except OSError:
        pass


def _is_silent(node: Node) -> str | None:
    try:
        socket.create_connection((node.host, node.port), CONNECT_S_MAX).close()
    except OSError as error:
        return str(error)
    return None


def _why_not(mover: Mover) -> str | None:
    """Why a node cannot be spared at the moment."""
    fenced = [node.id for node in mover.nodes().values() if node.is_fenced]
    if fenced:
        return f"node {fenced[0]} does not serve"
    partitions, _ = mover.look()
    for (topic, index), seen in sorted(partitions.items()):
        if seen.leader == NO_NODE or set(seen.isr) != set(seen.replicas):
            return f"{topic}-{index} has {sorted(seen.isr)} in sync of {sorted(seen.replicas)}"
    return None


def _leaders_away(mover: Mover, node_id: int) -> str | None:
    """It leads again what it is the first replica of."""
    partitions, _ = mover.look()
    away = [
        place
        for place, seen in partitions.items()
        if seen.replicas[0] == node_id and seen.leader != node_id
    ]
    if not away:
        return None
    mover.elect(away, PREFERRED)
    return f"{len(away)} partition(s) are not led by node {node_id}"


def _await(obstacle: Callable[[], str | None], patience_s: float, when: str) -> None:
    until_s = time.monotonic() + patience_s
    while (reason := obstacle()) is not None:
        if time.monotonic() > until_s:
            raise CommandFailed(f"Stopped {when}: {reason}, after {patience_s:.0f} s.")
        time.sleep(POLL_S)
