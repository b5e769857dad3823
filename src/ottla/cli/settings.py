"""`ottla settings`: what can be set, and what a broker would start with. No broker is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ottla.cli import output
from ottla.cli.help import examples
from ottla.cli.options import JsonOption
from ottla.cli.serving import without_effect
from ottla.cli.start import ConfigFile, Sets
from ottla.config import BROKER_SETTINGS, TOPIC_SETTINGS, Source, idle_names, load

app = typer.Typer(
    help="What can be set, and what a broker would start with. No broker is asked.",
    no_args_is_help=True,
    epilog=examples("ottla settings list", "ottla settings show node.toml --origin"),
)


def rows(scope: str) -> Iterator[dict[str, Any]]:
    """One row per setting of `broker`, `topic` or both (`all`)."""
    for name, settings in (("broker", BROKER_SETTINGS), ("topic", TOPIC_SETTINGS)):
        if scope in (name, "all"):
            for known in settings.values():
                yield {
                    "scope": name,
                    "name": known.name,
                    "type": known.type_name,
                    "default": known.format(known.default),
                    "expected": known.expected,
                    "dynamic": known.is_dynamic or name == "topic",
                    "doc": known.doc,
                }


@app.command(
    "list",
    epilog=examples(
        "ottla settings list", "ottla settings list --scope topic", "ottla settings list --json"
    ),
)
def list_settings(
    scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="broker, topic or all.", show_default=True)
    ] = "all",
    as_json: JsonOption = False,
) -> None:
    """Lists every setting with its type, its default and one sentence."""
    if scope not in ("broker", "topic", "all"):
        raise typer.BadParameter("--scope is broker, topic or all")
    found = list(rows(scope))
    if as_json:
        output.show(found, as_json=True)
        return
    for row in found:
        default = "none" if row["default"] is None else row["default"] or "empty"
        head = f"{row['name']} ({row['scope']}, {row['type']}, default {default})"
        output.write(f"{head}\n    {row['doc']}\n".encode())


@app.command(
    "show",
    epilog=examples(
        "ottla settings show",
        "ottla settings show node.toml --origin",
        "ottla settings show --set num.partitions=3 --changed",
    ),
)
def show(
    config_file: ConfigFile = None,
    sets: Sets = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also say where each value came from.")
    ] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only what is not the default.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows the settings that a broker would start with, from file, environment and --set."""
    config, origins = load(config_file, sets or (), os.environ)
    idle = idle_names(origins)
    if idle:
        output.say(f"{without_effect(idle).capitalize()}.")
    found = []
    for known in BROKER_SETTINGS.values():
        where = origins[known.name]
        if changed and where.source is Source.DEFAULT:
            continue
        row = {"name": known.name, "value": known.format(getattr(config, known.field_name))}
        found.append(row | ({"origin": str(where)} if origin else {}))
    if not found:
        output.say("Every setting is at its default.")
    output.show(found, as_json=as_json)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="settings")
