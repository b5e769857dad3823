"""`ottla storage`: data directories before their first start."""

from __future__ import annotations

import os
import secrets
from typing import Annotated, Final

import typer

from ottla.broker.storage.disk import RealDisk
from ottla.cli import output
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.log.directory import (
    DataDirectory,
    Identity,
    IncompatibleDataDirectory,
    decode_uuid,
    encode_uuid,
)

UUID_BYTES: Final = 16

app = typer.Typer(
    help="Data directories before their first start: an id for the cluster, and its nodes.",
    no_args_is_help=True,
    epilog=examples("ottla storage random-id", "ottla storage format --help"),
)


@app.command("random-id", epilog=examples("ottla storage random-id"))
def random_id() -> None:
    """Prints an id for a new cluster: all its nodes are formatted with the same."""
    output.write(f"{_new_id()}\n".encode())


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
    _check_id(cluster_id)
    for path in data_dirs:
        _format(path, cluster_id, node_id, ignore_formatted)


def _format(path: str, cluster_id: str, node_id: int, ignore_formatted: bool) -> None:
    disk = RealDisk()
    try:
        disk.make_directory(path)
        data = DataDirectory(disk, path)
        known = data.read_identity()
        if known is not None:
            _check_same(path, known, cluster_id, node_id, ignore_formatted)
            return
        data.write_identity(Identity(cluster_id, node_id, secrets.token_bytes(UUID_BYTES)))
        disk.sync_directory(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise CommandFailed(f"{path} cannot be formatted: {error.strerror}.") from None
    except IncompatibleDataDirectory as error:
        raise CommandFailed(f"{error}.") from None
    output.say(f"{path} is node {node_id} of the cluster {cluster_id}.")


def _check_same(
    path: str, known: Identity, cluster_id: str, node_id: int, ignore_formatted: bool
) -> None:
    if (known.cluster_id, known.node_id) == (cluster_id, node_id) and ignore_formatted:
        output.say(f"{path} is formatted already.")
        return
    advice = "choose another directory"
    if (known.cluster_id, known.node_id) == (cluster_id, node_id):
        advice = "give --ignore-formatted to leave it as it is"
    raise CommandFailed(
        f"{path} is node {known.node_id} of the cluster {known.cluster_id} already; {advice}."
    )


def _check_id(cluster_id: str) -> None:
    try:
        decode_uuid(cluster_id)
    except ValueError:
        raise WrongUsage(
            f"--cluster-id {cluster_id} is none: 16 bytes in base64, such as {_new_id()}; "
            "`ottla storage random-id` makes one."
        ) from None


def _new_id() -> str:
    """None that begins with a dash: it would be taken for an option."""
    while (made := encode_uuid(secrets.token_bytes(UUID_BYTES))).startswith("-"):
        continue
    return made


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="storage")
