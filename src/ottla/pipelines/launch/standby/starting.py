"""The Spark that stands by: started as it was wished for, and warmed by a rehearsal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ottla.pipelines.launch.rehearsal import rehearse
from ottla.pipelines.launch.session import start_ahead
from ottla.pipelines.launch.standby.held import Held, hold
from ottla.pipelines.launch.standby.likeness import Wish
from ottla.pipelines.running.attempts import make_active
from ottla.spark.startup.environment import scratch


def start(wish: Wish, is_enough: Callable[[], bool]) -> None:
    settings = wish.settings_in(scratch())
    spark = start_ahead(wish.master, settings)
    # What a rehearsal sets and registers is not the command's; without it all is only slower.
    with (
        TemporaryDirectory(dir=scratch(), ignore_cleanup_errors=True) as directory,
        suppress(Exception),
    ):
        rehearse(spark.newSession(), Path(directory), is_enough=is_enough)
    make_active(spark)
    hold(Held(spark, wish.master, settings))
