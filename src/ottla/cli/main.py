"""The entry point. Only the noun that was asked for is imported: `ottla start` must be quick."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer

from ottla.cli import output
from ottla.cli.failures import INTERRUPTED, WRONG_USAGE, CommandFailed, ReaderGone
from ottla.cli.help import examples
from ottla.errors import InvalidConfig

NOUNS: Final = (
    "start",
    "topics",
    "produce",
    "consume",
    "groups",
    "configs",
    "records",
    "node",
    "config",
    "version",
)


def run() -> None:
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Does what the arguments say; the exit code."""
    try:
        code = _perform(arguments)
        output.flush()
        return code
    except ReaderGone:
        output.drop()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def _perform(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(application(_nouns_for(arguments)))
    try:
        code: Any = command.main(list(arguments), prog_name="ottla", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except CommandFailed as failure:
        output.complain(failure)
        return failure.exit_code
    except InvalidConfig as error:
        output.complain(error)
        return WRONG_USAGE
    except typer.Abort:
        return INTERRUPTED
    except ReaderGone:
        raise
    except Exception as error:
        if hasattr(error, "format_message"):
            return _explain_usage(error)
        if "OTTLA_DEBUG" in os.environ:
            raise
        output.complain(
            f"This is a bug: {type(error).__name__}: {error}. OTTLA_DEBUG=1 shows where; "
            "please report it."
        )
        return 1


def _explain_usage(error: Any) -> int:
    """Typer's own complaints: those of click, whose classes it does not export."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return WRONG_USAGE
    message = " ".join(error.format_message().split())
    hint = f" See `{context.command_path} --help`." if context is not None else ""
    output.complain(f"{message.rstrip('.')}.{hint}")
    return int(error.exit_code)


def _nouns_for(arguments: Sequence[str]) -> Iterable[str]:
    """The one noun that is meant, or all when help, completion or a mistake needs them."""
    is_completing = "_OTTLA_COMPLETE" in os.environ
    if arguments and arguments[0] in NOUNS and not is_completing:
        return (arguments[0],)
    return NOUNS


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
        context_settings={"help_option_names": ["--help", "-h"]},
    )

    # With a callback Typer keeps the noun even when only one is there.
    @root.callback()
    def everything() -> None: ...

    for noun in nouns:
        importlib.import_module(f"ottla.cli.{noun}").register(root)
    return root
