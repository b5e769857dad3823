"""Options that many commands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.failures import WrongUsage

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=completion.topics)
]


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """`name=value` texts as a mapping."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            given = f"{option} {text}".strip()
            raise WrongUsage(f"{given} has no value; write {f'{option} NAME=VALUE'.strip()}.")
        found[name] = value
    return found
