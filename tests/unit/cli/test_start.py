"""The command line of `ottla start` means the same on its quick way and through Typer."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli import start
from ottla.cli.application import perform
from ottla.cli.failures import WrongUsage
from ottla.cli.serving import SETTING_BY_OPTION, Invocation, parse, worker_count

VALUES = st.text("ab=.:-", min_size=1)
PIECES = st.one_of(
    st.tuples(st.sampled_from([*SETTING_BY_OPTION, "--set"]), VALUES),
    st.tuples(st.just("--ready-fd"), st.integers(0, 99).map(str)),
    st.just(("--die-with-parent",)),
    st.tuples(st.just("--workers"), st.sampled_from(["2", "auto"])),
    st.tuples(st.just("--worker"), st.integers(1, 9).map(str)),
    st.builds(lambda option, value: (f"{option}={value}",), st.sampled_from(["--set"]), VALUES),
)


def through_typer(arguments: Sequence[str]) -> Invocation:
    """What the Typer command would serve."""
    served: list[Invocation] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "serve", lambda invocation: served.append(invocation) or 7)
        assert perform(["start", *arguments]) == 7
    return served[0]


@given(st.lists(PIECES, max_size=5), st.sampled_from([(), ("node.toml",)]))
def test_both_ways_understand_the_same(
    pieces: list[tuple[str, ...]], file: tuple[str, ...]
) -> None:
    arguments = [*(word for piece in pieces for word in piece), *file]
    quick = parse(arguments)
    assert quick is not None
    assert quick == through_typer(arguments)


def test_every_option_is_understood() -> None:
    given_all = [word for option in SETTING_BY_OPTION for word in (option, option[2:])]
    quick = parse([*given_all, "--set", "a=1", "--set=b=2", "file", "--ready-fd", "5"])
    assert quick == Invocation(
        "file",
        ("a=1", "b=2"),
        {setting: option[2:] for option, setting in SETTING_BY_OPTION.items()},
        5,
        False,
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["-h"], ["--bogus", "x"], ["--set"], ["a", "b"], ["--ready-fd", "x"], ["-x", "1"]],
)
def test_help_and_mistakes_are_left_to_typer(arguments: list[str]) -> None:
    assert parse(arguments) is None


def test_each_data_dir_is_one_more_of_log_dirs() -> None:
    arguments = ["--data-dir", "/disk-1", "--data-dir=/disk-2"]
    quick = parse(arguments)
    assert quick is not None
    assert quick.flags == {"log.dirs": "/disk-1,/disk-2"}
    assert through_typer(arguments) == quick


def test_so_many_workers_or_one_for_each_core() -> None:
    assert worker_count(None) is None
    assert worker_count("3") == 3
    assert worker_count("auto") == len(os.sched_getaffinity(0))
    with pytest.raises(WrongUsage, match="give how many, or auto"):
        worker_count("many")
