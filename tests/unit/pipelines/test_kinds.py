"""Every source and sink that a file can name has a kind that does its work."""

from __future__ import annotations

import pytest

from ottla.pipelines.language.model import Sink, Source
from ottla.pipelines.sinks import kinds as sinks
from ottla.pipelines.sources import kinds as sources


def leaves(base: type) -> set[type]:
    below = base.__subclasses__()
    return {base} if not below else {leaf for one in below for leaf in leaves(one)}


@pytest.mark.parametrize(("base", "table"), [(Source, sources.KINDS), (Sink, sinks.KINDS)])
def test_every_one_of_the_model_has_a_kind(base: type, table: dict[type, object]) -> None:
    assert leaves(base) == set(table)
