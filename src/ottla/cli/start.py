"""`ottla start`: one broker in the foreground.

Nothing here may import rich, FastAPI or confluent_kafka: a broker starts in a blink.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.config import BrokerConfig, load
from ottla.errors import OttlaError

if TYPE_CHECKING:
    from ottla.broker.main import ReadyInfo

ConfigFile = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG_FILE",
        help="Settings, as TOML or in Kafka's .properties form.",
        show_default=False,
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Where the data is; log.dirs.", show_default=False),
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
        help="Any setting; may be repeated. `ottla config list` shows all.",
        show_default=False,
    ),
]


def flags_given(**texts: str | None) -> dict[str, str]:
    """The settings that have a flag of their own, by Kafka's names."""
    names = {
        "data_dir": "log.dirs",
        "listen": "listeners",
        "advertise": "advertised.listeners",
        "http": "http.listener",
        "node_id": "node.id",
        "log_level": "log.level",
        "log_format": "log.format",
    }
    return {names[flag]: text for flag, text in texts.items() if text is not None}


def start(
    config_file: ConfigFile = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    advertise: Advertise = None,
    http: HttpListen = None,
    node_id: NodeId = None,
    sets: Sets = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    die_with_parent: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Starts a broker and serves until Ctrl-C or SIGTERM.

    Settings have Kafka's names. A flag wins over --set, that over OTTLA_* in the environment
    (OTTLA_NUM_PARTITIONS is num.partitions), that over the file.
    """
    flags = flags_given(
        data_dir=data_dir,
        listen=listen,
        advertise=advertise,
        http=http,
        node_id=node_id,
        log_level=log_level,
        log_format=log_format,
    )
    config, _ = load(config_file, sets or (), os.environ, flags)
    if sys.platform == "win32":
        raise CommandFailed(
            "The broker runs on Linux and macOS; on Windows use the other commands."
        )
    if die_with_parent:
        from ottla.cli.parent import end_with_parent

        end_with_parent()
    from ottla.broker import logs
    from ottla.broker.main import run

    logs.configure(config.log_level, config.log_format)

    def announce(info: ReadyInfo) -> None:
        if ready_fd is None:
            _greet(info)
        else:
            _report_ready(ready_fd, info)

    try:
        code = run(config, on_ready=announce)
    except (OSError, OttlaError) as error:
        if "OTTLA_DEBUG" in os.environ:
            raise
        raise CommandFailed(_reason(error, config)) from error
    raise typer.Exit(code)


def _reason(error: Exception, config: BrokerConfig) -> str:
    """Why the broker could not start, or go on, and what to do."""
    if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
        return str(error)
    options = {listener.address: "--listen" for listener in config.bound()}
    http = config.http_address()
    if http is not None:
        options[http] = "--http"
    for address, option in options.items():
        if f"{address.host}', {address.port}" in str(error):
            return f"{address} is taken by another process; choose another with {option} HOST:PORT."
    return str(error)


def _greet(info: ReadyInfo) -> None:
    """The few lines that a person sees."""
    there = "" if info.kafka == "127.0.0.1:9092" else f" -b {info.kafka}"
    recovered = "" if info.was_clean else ", after checking what an unclean stop left"
    lines = [
        f"Ottla listens on {info.kafka} (ready in {info.seconds:.2f} s{recovered}).",
        f"Data is in {info.data_dir}.",
    ]
    if info.http:
        lines.append(f"Health and metrics: http://{info.http}/metrics")
    lines += [
        "Try:",
        f"  echo hello | ottla produce{there} greetings",
        f"  ottla consume{there} greetings --from-beginning",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _report_ready(ready_fd: int, info: ReadyInfo) -> None:
    """One line of JSON for a program that waits for it."""
    import json

    line = {
        "bootstrap": info.kafka,
        "kafka": info.kafka,
        "http": info.http,
        "data_dir": info.data_dir,
        "pid": os.getpid(),
    }
    try:
        os.write(ready_fd, json.dumps(line).encode() + b"\n")
        os.close(ready_fd)
    except OSError as error:
        raise WrongUsage(f"--ready-fd {ready_fd} cannot be written: {error.strerror}.") from None


def register(root: typer.Typer) -> None:
    root.command(
        "start",
        epilog=examples(
            "ottla start",
            "ottla start --data-dir /var/lib/ottla --listen 127.0.0.1:9092",
            "ottla start node.toml --set num.partitions=3",
            "ottla start --listen 0.0.0.0:9092 --advertise broker-1.example.org:9092",
        ),
    )(start)
