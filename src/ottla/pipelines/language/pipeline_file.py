"""The pipeline file, read: all that is wrong with it at once, each with its place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ottla.pipelines.language.builder import build
from ottla.pipelines.language.checker import Checker
from ottla.pipelines.language.document import Items, Node, Scalar, Table, parse, read_text, shown
from ottla.pipelines.language.keys import PIPELINE, Version
from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.language.overrides import override
from ottla.pipelines.language.problems import BadPipeline, Place, Problem
from ottla.pipelines.language.secrets import assigned_in, is_secret_name, redact, secrets_in
from ottla.pipelines.language.variables import Variables

# A file that is wrong in more ways is looked at again anyway.
PROBLEMS_MAX: Final = 100


def read_pipeline(
    file: Path,
    *,
    overrides: Mapping[str, str] = {},
    environment: Mapping[str, str] = os.environ,
) -> Pipeline:
    """The pipeline with its defaults filled in; raises BadPipeline."""
    variables = Variables(environment, [], set())
    pipeline = None
    try:
        pipeline = _read(file, overrides, variables)
    except BadPipeline as bad:
        variables.problems.extend(bad.problems)
    if variables.problems or pipeline is None:
        raise BadPipeline(_told(variables.problems, variables.secrets))
    return pipeline


def _read(file: Path, overrides: Mapping[str, str], variables: Variables) -> Pipeline | None:
    root = parse(read_text(file), file, variables.problems)
    for path, text in overrides.items():
        root = override(root, path, text)
    root = variables.fill_table(root)
    # Before any value is shown.
    variables.secrets.update(_secrets(root))
    _check_version(root)
    checker = Checker(variables)
    found = checker.fields(PIPELINE, root, "")
    return build(found, file, checker, variables)


def _check_version(root: Table) -> None:
    """A later language may have other keys, so nothing else is said about such a file."""
    node, ours = root.get("version"), str(Version().number)
    if not isinstance(node, Scalar) or node.is_null or node.text.strip() == ours:
        return
    text = (
        f"version {shown(node.text)} of the pipeline file is unknown to this Ottla, which reads "
        f"version {ours}; write `version: {ours}`, or use a newer Ottla"
    )
    raise BadPipeline([Problem(text, node.place)])


def _secrets(node: Node, is_secret: bool = False) -> Iterable[str]:
    """What keys call a secret, and passwords in addresses; `token = status` in SQL is none."""
    if isinstance(node, Scalar):
        if is_secret:
            yield from secrets_in(node.text)
        elif "://" in node.text or node.text.startswith("jdbc:"):
            yield from assigned_in(node.text)
    elif isinstance(node, Items):
        for each in node.nodes:
            yield from _secrets(each, is_secret)
    else:
        for key, value in node.entries:
            yield from _secrets(value, is_secret or is_secret_name(key.text))


def _told(problems: Iterable[Problem], secrets: Iterable[str]) -> list[Problem]:
    """In the order of the file, each once, without secrets."""
    hidden = frozenset(secrets)
    lines = {
        Problem(redact(" ".join(problem.text.split()), hidden), problem.place)
        for problem in problems
    }
    return sorted(lines, key=_order)[:PROBLEMS_MAX]


def _order(problem: Problem) -> tuple[str, int, int, str]:
    place: Place | None = problem.place
    if place is None:
        return "", 0, 0, problem.text
    return str(place.file), place.line, place.column, problem.text
