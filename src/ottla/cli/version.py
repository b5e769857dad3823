"""`ottla version`."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from ottla.cli import output
from ottla.cli.help import examples
from ottla.cli.options import JsonOption


def version(as_json: JsonOption = False) -> None:
    """Shows the versions of Ottla and of what it stands on."""
    from ottla.cli.kafka import libversion

    versions = {
        "ottla": metadata.version("ottla"),
        "python": platform.python_version(),
        "confluent_kafka": metadata.version("confluent-kafka"),
        "librdkafka": libversion()[0],
        "platform": platform.platform(),
    }
    if as_json:
        output.show([versions], as_json=True)
    else:
        lines = (f"{name} {number}\n" for name, number in versions.items())
        output.write("".join(lines).encode())


def register(root: typer.Typer) -> None:
    root.command("version", epilog=examples("ottla version", "ottla version --json"))(version)
