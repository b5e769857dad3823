"""Whether a command uses a Spark that stands by, and leaves one for the next (ADR 0012)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ottla.cli import output
from ottla.cli.failures import CommandFailed, StartAgain

if TYPE_CHECKING:
    from ottla.pipelines.language.model import Pipeline
    from ottla.pipelines.launch.standby.likeness import Wish

SWITCH: Final = "OTTLA_STANDBY"
# Set by a process for the one that takes up its command.
TAKEN_UP: Final = "_OTTLA_"
# Not with the directory it is started in first on its path: what is there is the user's.
PROCESS: Final = ("-P", "-m", "ottla.cli.standby_process")
READY_S: Final = 180.0

StandbyOption = Annotated[
    bool | None,
    typer.Option(
        "--standby/--no-standby",
        envvar=SWITCH,
        help="Use the Spark that an earlier command has left running, and leave one for the next; "
        "else only at a terminal.",
        show_default=False,
    ),
]


@contextmanager
def standing_by(
    pipeline: Pipeline,
    asked: bool | None,
    *,
    master: str | None = None,
    jars: Sequence[str] = (),
    is_alone: bool = False,
    checkpoint: str | None = None,
) -> Iterator[None]:
    """Ends the command where another process does it; `is_alone` goes without one in any case."""
    wish = None
    if not is_alone and is_wanted(asked):
        wish = _wish(pipeline, master, jars, checkpoint)
    if wish is None:
        yield
        return
    # Spark's start adds to it.
    environment = dict(os.environ)
    goes_on = False
    try:
        code = _done_elsewhere(wish)
        if code is not None:
            raise typer.Exit(code)
        yield
    except StartAgain:
        goes_on = True
        raise
    finally:
        if not goes_on and is_prepared():
            from ottla.pipelines.launch.standby.asking import leave_one

            leave_one(wish, [sys.executable, *PROCESS], environment)


def is_wanted(asked: bool | None) -> bool:
    if any(name.startswith(TAKEN_UP) for name in os.environ):
        return False
    from ottla.pipelines.launch.standby.held import is_holding

    if is_holding():
        return False
    return asked if asked is not None else _somebody_waits()


def _somebody_waits() -> bool:
    is_automatic = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return sys.stdin.isatty() and sys.stderr.isatty() and not is_automatic


def _wish(
    pipeline: Pipeline, master: str | None, jars: Sequence[str], checkpoint: str | None
) -> Wish | None:
    from ottla.pipelines.launch.session import wish_of

    return wish_of(pipeline, master=master, jars=jars, checkpoint=checkpoint)


def is_prepared() -> bool:
    """While the archive of classes is being made, that is enough to do beside the user."""
    from ottla.pipelines.launch import class_archive
    from ottla.spark.startup.spark_home import spark_home

    home = spark_home()
    archive = class_archive.archive_of(home) if home is not None else None
    return archive is None or archive.exists()


def _done_elsewhere(wish: Wish) -> int | None:
    from ottla.pipelines.launch.standby.asking import LeftAlone, hand_over

    output.flush()
    try:
        outcome = hand_over(wish)
    except LeftAlone as left:
        raise CommandFailed(
            f"The Spark that stood by is lost: {left}; run the command again."
        ) from None
    if outcome is None:
        return None
    if outcome.start_again:
        raise StartAgain(outcome.words, outcome.variables)
    return outcome.exit_code


def warm(pipeline: Pipeline, jars: Sequence[str], master: str | None, idle_s: float) -> None:
    """Until one stands by for this pipeline."""
    from ottla.pipelines.launch.standby.asking import await_ready, leave_one

    wish = _wish(pipeline, master, jars, None)
    if wish is None:
        raise CommandFailed(
            "No Spark stands by for this file: its master is a cluster, Spark fetches packages for "
            "it, or a setting below `spark` is a secret."
        )
    deadline = time.monotonic() + READY_S
    if not leave_one(wish, [sys.executable, *PROCESS], dict(os.environ), idle_s=idle_s):
        raise CommandFailed("No Spark was started: memory is low, or there is no place for it.")
    failed = await_ready(deadline)
    if failed is not None:
        raise CommandFailed(f"No Spark stands by: {failed}.")


def end() -> bool:
    from ottla.pipelines.launch.standby import asking, place

    where = place.directory()
    return where is not None and asking.end_one(where)
