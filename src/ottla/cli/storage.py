"""`ottla storage`: data directories before their first start."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import output
from ottla.cli.failures import WrongUsage
from ottla.cli.formatting import (
    FirstVoter,
    check_id,
    format_directory,
    new_directory_id,
    new_id,
    parse_voters,
)
from ottla.cli.help import examples

app = typer.Typer(
    help="Data directories before their first start: an id for the cluster, and its nodes.",
    no_args_is_help=True,
    epilog=examples("ottla storage random-id", "ottla storage format --help"),
)


@app.command("random-id", epilog=examples("ottla storage random-id"))
def random_id() -> None:
    """Prints an id for a new cluster: all its nodes are formatted with the same."""
    output.write(f"{new_id()}\n".encode())


@app.command(
    "format",
    epilog=examples(
        "ottla storage format --cluster-id kVl7ZAEnT0mgsQ2xOTxGGw --node-id 1 --data-dir /data/1",
        "ottla storage format --cluster-id kVl7ZAEnT0mgsQ2xOTxGGw --node-id 1 --data-dir /data/1 "
        "--standalone",
        "ottla storage format --cluster-id kVl7ZAEnT0mgsQ2xOTxGGw --node-id 2 --data-dir /data/2 "
        "--no-initial-controllers",
        "ottla storage format --cluster-id kVl7ZAEnT0mgsQ2xOTxGGw --node-id 1 --data-dir /data/1 "
        "--initial-controllers 1@10.0.0.1:9093:mWdVG4vBSwKBYqnJNJVZHQ,"
        "2@10.0.0.2:9093:Tn7EpJ8LR9OZdQrGtZxw0A,3@10.0.0.3:9093:zVq4qOcUQ4K5vXQ5BlX2Yw",
    ),
)
def format_directories(
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", metavar="ID", help="The same on all nodes.")
    ],
    node_id: Annotated[int, typer.Option("--node-id", min=0, help="This node's node.id.")],
    data_dirs: Annotated[
        list[str],
        typer.Option(
            "--data-dir", metavar="DIR", help="May be repeated; the first has the metadata log."
        ),
    ],
    standalone: Annotated[
        bool,
        typer.Option("--standalone", help="This node begins the cluster as its only controller."),
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            metavar="ID@HOST:PORT:DIRECTORY_ID,...",
            help="The controllers that the cluster begins with; the same on all of them.",
            show_default=False,
        ),
    ] = None,
    no_initial_controllers: Annotated[
        bool,
        typer.Option(
            "--no-initial-controllers",
            help="This node joins a cluster that others have begun, by "
            "controller.quorum.bootstrap.servers.",
        ),
    ] = False,
    ignore_formatted: Annotated[
        bool,
        typer.Option("--ignore-formatted", help="Leave directories of this node as they are."),
    ] = False,
) -> None:
    """Makes data directories those of one node of one cluster; needed where there are several.

    With one of --standalone, --initial-controllers and --no-initial-controllers the voters are
    records of the metadata log, added and removed while it runs (`ottla quorum`). Without, they are
    those of controller.quorum.voters.
    """
    check_id(cluster_id)
    if standalone + no_initial_controllers + (initial_controllers is not None) > 1:
        raise WrongUsage(
            "Give one of --standalone, --initial-controllers and --no-initial-controllers."
        )
    voters: list[FirstVoter] | None = [] if no_initial_controllers else None
    own_id = new_directory_id()
    if standalone:
        voters = [FirstVoter(node_id, own_id)]
    elif initial_controllers is not None:
        voters = parse_voters(initial_controllers)
        own_id = next((each.directory_id for each in voters if each.node_id == node_id), own_id)
    for position, path in enumerate(data_dirs):
        has_metadata = not position
        is_done = format_directory(
            path,
            cluster_id,
            node_id,
            ignore_formatted=ignore_formatted,
            voters=voters if has_metadata else None,
            directory_id=own_id if has_metadata else None,
        )
        if is_done:
            output.say(f"{path} is node {node_id} of the cluster {cluster_id}.")
        else:
            output.say(f"{path} is formatted already.")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="storage")
