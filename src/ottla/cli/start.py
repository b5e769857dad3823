"""`ottla start`, as Typer knows it. What it does is in serving.py."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.help import examples
from ottla.cli.serving import SETTING_BY_OPTION, Invocation, serve

ConfigFile = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG_FILE",
        help="Settings, as TOML or in Kafka's .properties form.",
        show_default=False,
    ),
]
DataDirs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR",
        help="Where the data is; log.dirs. May be repeated, once for each disk.",
        show_default=False,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where to serve clients; listeners. Port 0 takes a free one.",
        show_default=False,
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The address that clients are told; advertised.listeners.",
        show_default=False,
    ),
]
HttpListen = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Where to serve health and metrics; http.listener.",
        show_default=False,
    ),
]
NodeId = Annotated[
    str | None, typer.Option(metavar="N", help="The broker's number; node.id.", show_default=False)
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL", help="debug, info, warning or error; log.level.", show_default=False
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="text or json; log.format.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting; may be repeated. `ottla settings list` shows all.",
        show_default=False,
    ),
]


ClusterId = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="A directory that is not formatted becomes this cluster's, as in containers.",
        show_default=False,
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Run N brokers on this host, or auto: one per core.",
        show_default=False,
    ),
]


def start(
    config_file: ConfigFile = None,
    data_dir: DataDirs = None,
    listen: Listen = None,
    advertise: Advertise = None,
    http: HttpListen = None,
    node_id: NodeId = None,
    workers: Workers = None,
    sets: Sets = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", hidden=True)] = False,
    cluster_id: ClusterId = None,
    worker: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Starts a broker and serves until Ctrl-C or SIGTERM.

    Settings have Kafka's names. A flag wins over --set, that over OTTLA_* in the
    environment (OTTLA_NUM_PARTITIONS is num.partitions), that over the file.

    A broker uses one core. With --workers several run on this host, each a node of its own. All
    accept clients at the given port, and worker K has that port + 10 * K for itself and the number
    node.id + 1000 * (K - 1). One that dies is started again.
    """
    given = {
        "--data-dir": ",".join(data_dir) if data_dir else None,
        "--listen": listen,
        "--advertise": advertise,
        "--http": http,
        "--node-id": node_id,
        "--log-level": log_level,
        "--log-format": log_format,
    }
    flags = {
        setting: text
        for option, setting in SETTING_BY_OPTION.items()
        if (text := given[option]) is not None
    }
    given_sets = tuple(sets or ())
    raise typer.Exit(
        serve(
            Invocation(
                config_file,
                given_sets,
                flags,
                ready_fd,
                die_with_parent,
                cluster_id,
                workers,
                worker,
            )
        )
    )


def register(root: typer.Typer) -> None:
    root.command(
        "start",
        epilog=examples(
            "ottla start",
            "ottla start --data-dir /var/lib/ottla --listen 127.0.0.1:9092",
            "ottla start --data-dir /disk-1/ottla --data-dir /disk-2/ottla",
            "ottla start node.toml --set num.partitions=3",
            "ottla start node.toml --workers auto",
            "ottla start --listen 0.0.0.0:9092 --advertise broker-1.example.org:9092",
        ),
    )(start)
