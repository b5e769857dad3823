"""`ottla cluster`: several nodes on this machine that are one cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from ottla.cli import output
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples

# Nothing of the supervisor is imported before it is needed: help is also for systems without it.
DATA_DIR_DEFAULT: Final = "ottla-cluster"
WATCH_S: Final = 2.0
CLEAR_SCREEN: Final = b"\x1b[H\x1b[2J"

app = typer.Typer(
    help="Several nodes on this machine that are one cluster: to try it out, to break it.",
    no_args_is_help=True,
    epilog=examples(
        "ottla cluster up --nodes 3 --data-dir ./cluster",
        "ottla cluster status --data-dir ./cluster",
        "ottla cluster kill 2 --data-dir ./cluster",
    ),
)

DataDirOption = Annotated[
    str, typer.Option("--data-dir", metavar="DIR", help="Where the cluster is.")
]
NodesArgument = Annotated[
    list[int], typer.Argument(metavar="NODE...", help="Numbers of nodes.", show_default=False)
]


@app.command(
    "up",
    epilog=examples(
        "ottla cluster up --nodes 3 --data-dir ./cluster",
        "ottla cluster up --data-dir ./cluster",
        "ottla cluster up --nodes 5 --base-port 19092 --set num.partitions=6",
    ),
)
def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=15,
            metavar="N",
            help="How many; 3, or as many as the directory has.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDirOption = DATA_DIR_DEFAULT,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            metavar="PORT",
            help="That of node 1, node 2 has the next; 9092, or as it was.",
            show_default=False,
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting for all nodes; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Starts the nodes of a cluster and serves until Ctrl-C, SIGTERM or `ottla cluster down`.

    What is not formatted is formatted; the next `up` on the same directory goes on with the same
    nodes and data. A node that ends by itself is started again; one that `kill` or `stop` has
    ended stays so until `start`. Topics get three replicas (as many as there are nodes, if fewer)
    and `min.insync.replicas=2`, unless --set says otherwise.
    """
    if sys.platform == "win32":
        raise CommandFailed("Nodes run on Linux and macOS; on Windows use the other commands.")
    from ottla.cli.supervisor import up as starting
    from ottla.cli.supervisor.home import Home

    raise typer.Exit(starting.up(Home(data_dir), nodes, base_port, sets or ()))


@app.command(
    "status",
    epilog=examples(
        "ottla cluster status --data-dir ./cluster",
        "ottla cluster status --data-dir ./cluster --json",
        "ottla cluster status --bootstrap broker-1:9092 --watch",
    ),
)
def status(
    data_dir: DataDirOption = DATA_DIR_DEFAULT,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT",
            help="Ask this broker of any cluster instead; several are separated by commas.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="With --bootstrap: again every 2 s, until Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON array of all nodes; with --bootstrap an object."),
    ] = False,
) -> None:
    """Shows each node: its process, its role, and how its partitions are.

    The controller leads the metadata log. `under-replicated` counts the partitions that a node
    leads and of which not all replicas are in sync; `lag` the messages that it has not copied yet.

    With --bootstrap any cluster is asked over the protocol: `out-of-sync` counts the replicas of a
    node that are not in sync, `metadata-lag` the records of the metadata log that it lacks. A node
    that is fenced is registered and does not serve. Exit code 1 if a partition has no leader.
    """
    if bootstrap is not None:
        _show_cluster(bootstrap, watch=watch, as_json=as_json)
        return
    if watch:
        raise WrongUsage("--watch is for a cluster that --bootstrap names.")
    from ottla.cli.supervisor.home import Home
    from ottla.cli.supervisor.look import look

    rows = look(Home(data_dir))
    if as_json:
        output.write(f"[{', '.join(map(output.json_line, rows))}]\n".encode())
    else:
        output.show(rows, as_json=False)


def _show_cluster(bootstrap: str, *, watch: bool, as_json: bool) -> None:
    from ottla.cli.cluster_view import look

    while True:
        try:
            seen = look(bootstrap)
        except CommandFailed as error:
            if not watch:
                raise
            # The moment in which nobody answers is the one to go on watching.
            output.say(str(error))
            time.sleep(WATCH_S)
            continue
        if as_json:
            output.write(f"{output.json_line(seen)}\n".encode())
        else:
            if watch and sys.stdout.isatty():
                output.write(CLEAR_SCREEN)
            head = {name: value for name, value in seen.items() if name != "nodes"}
            words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in head.items())
            output.write(f"{words}\n".encode())
            output.show(seen["nodes"], as_json=False)
        output.flush()
        if not watch:
            break
        time.sleep(WATCH_S)
    if seen["offline"]:
        raise CommandFailed(f"{seen['offline']} partitions have no leader.")


@app.command("kill", epilog=examples("ottla cluster kill 2 --data-dir ./cluster"))
def kill(nodes: NodesArgument, data_dir: DataDirOption = DATA_DIR_DEFAULT) -> None:
    """Kills nodes as a crash would (kill -9). They stay away until `ottla cluster start`."""
    _ask("kill", data_dir, nodes)


@app.command("start", epilog=examples("ottla cluster start 2 --data-dir ./cluster"))
def start(nodes: NodesArgument, data_dir: DataDirOption = DATA_DIR_DEFAULT) -> None:
    """Starts nodes that do not run, and waits until they serve."""
    _ask("start", data_dir, nodes)


@app.command("stop", epilog=examples("ottla cluster stop 2 --data-dir ./cluster"))
def stop(nodes: NodesArgument, data_dir: DataDirOption = DATA_DIR_DEFAULT) -> None:
    """Stops nodes cleanly: others take over what they lead. They stay away until `start`."""
    _ask("stop", data_dir, nodes)


@app.command("down", epilog=examples("ottla cluster down --data-dir ./cluster"))
def down(data_dir: DataDirOption = DATA_DIR_DEFAULT) -> None:
    """Stops all nodes and the `ottla cluster up` that runs them; the data stays."""
    _ask("down", data_dir, ())


def _ask(command: str, data_dir: str, nodes: Sequence[int]) -> None:
    from ottla.cli.supervisor.home import Home
    from ottla.cli.supervisor.requests import ask

    home = Home(data_dir)
    home.known_plan()
    answer = ask(home, command, nodes)
    if answer is None:
        raise CommandFailed(
            f"The cluster in {data_dir} does not run; `ottla cluster up {home.advice}` starts it."
        )
    for words in answer["said"]:
        output.say(words)
    if answer["failed"]:
        raise CommandFailed("\nottla: ".join(answer["failed"]))


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="cluster")
