"""All commands together, as Typer sees them. Only the noun that is asked for is imported."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer

from ottla.cli import output
from ottla.cli.failures import INTERRUPTED, WRONG_USAGE
from ottla.cli.help import examples

HELP: Final = ("--help", "-h")
NOUNS: Final = (
    "start",
    "cluster",
    "storage",
    "topics",
    "produce",
    "consume",
    "groups",
    "configs",
    "records",
    "partitions",
    "balance",
    "nodes",
    "node",
    "quorum",
    "features",
    "log",
    "pipeline",
    "settings",
    "plan",
    "version",
)
# Old names that still work and that help does not show.
NOUN_BY_OLD_NAME: Final = {"config": "settings"}


def perform(arguments: Sequence[str]) -> int:
    """Does what the arguments say; the exit code. Failures come out as exceptions."""
    command = typer.main.get_command(application(_nouns_for(arguments)))
    _show_flags_without_a_type(command)
    try:
        code: Any = command.main(list(arguments), prog_name="ottla", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _explain_usage(error)
    return code if isinstance(code, int) else 0


def _show_flags_without_a_type(command: Any) -> None:
    """Else Typer's help has `<bool>` beside each of them, as if a value could follow."""
    context = typer.Context(command, help_option_names=list(HELP))
    for option in command.get_params(context):
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    for each in getattr(command, "commands", {}).values():
        _show_flags_without_a_type(each)


def _explain_usage(error: Any) -> int:
    """Typer's own complaints: those of click, whose classes it does not export."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return WRONG_USAGE
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split())
    hint = f" See `{context.command_path} --help`." if context is not None else ""
    stop = "" if message.endswith("?") else "."
    output.complain(f"{message.rstrip('.')}{stop}{hint}")
    return int(error.exit_code)


def _nouns_for(arguments: Sequence[str]) -> Iterable[str]:
    """The one noun that is meant, or all when help, completion or a mistake needs them."""
    is_completing = "_OTTLA_COMPLETE" in os.environ
    noun = NOUN_BY_OLD_NAME.get(arguments[0], arguments[0]) if arguments else None
    return (noun,) if noun in NOUNS and not is_completing else NOUNS


def application(nouns: Iterable[str] = NOUNS) -> typer.Typer:
    """The whole command, or as much of it as is needed."""
    root = typer.Typer(
        name="ottla",
        help="Ottla: a durable message queue that speaks the Kafka protocol.",
        epilog=examples(
            "ottla start",
            "ottla topics create orders --partitions 3",
            "echo hello | ottla produce orders",
            "ottla consume orders --from-beginning --no-follow",
        ),
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP)},
    )

    # With a callback Typer keeps the noun even when only one is there.
    @root.callback()
    def everything() -> None: ...

    for noun in nouns:
        module = importlib.import_module(f"ottla.cli.{noun}")
        module.register(root)
        for old, new in NOUN_BY_OLD_NAME.items():
            if new == noun:
                root.add_typer(module.app, name=old, hidden=True)
    return root
