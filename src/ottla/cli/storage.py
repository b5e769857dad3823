"""`ottla storage`: data directories before their first start."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import output
from ottla.cli.formatting import check_id, format_directory, new_id
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
        "ottla storage format --cluster-id kVl7ZAEnT0mgsQ2xOTxGGw --node-id 1 --data-dir /data/1"
    ),
)
def format_directories(
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", metavar="ID", help="The same on all nodes.")
    ],
    node_id: Annotated[int, typer.Option("--node-id", min=0, help="This node's node.id.")],
    data_dirs: Annotated[
        list[str], typer.Option("--data-dir", metavar="DIR", help="May be repeated.")
    ],
    ignore_formatted: Annotated[
        bool,
        typer.Option("--ignore-formatted", help="Leave directories of this node as they are."),
    ] = False,
) -> None:
    """Makes data directories those of one node of one cluster; needed where there are several."""
    check_id(cluster_id)
    for path in data_dirs:
        if format_directory(path, cluster_id, node_id, ignore_formatted=ignore_formatted):
            output.say(f"{path} is node {node_id} of the cluster {cluster_id}.")
        else:
            output.say(f"{path} is formatted already.")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="storage")
