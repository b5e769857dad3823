"""docs/spark.md is what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.spark.options.catalogue import OPTIONS, WITHOUT_EFFECT
from ottla.spark.options.reference import PARTS, fill
from ottla.spark.options.source import SourceOptions
from ottla.spark.options.values import BadOption

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def test_the_drawn_parts_are_up_to_date() -> None:
    assert fill(PAGE.read_text()) == PAGE.read_text(), "run `make docs`"


def test_every_part_is_on_the_page_and_every_option_in_a_row_of_its_own() -> None:
    page = PAGE.read_text()
    assert all(f"<!-- drawn: {name} -->" in page for name in PARTS)
    for option in OPTIONS + WITHOUT_EFFECT:
        assert f"\n| `{option.name}` |" in page


def test_a_part_that_nobody_draws_is_noticed() -> None:
    with pytest.raises(KeyError):
        fill("<!-- drawn: nothing -->\n<!-- end -->")


@pytest.mark.parametrize("options", [{"maxoffsetpertrigger": "1"}, {"startingoffsets": "first"}])
def test_the_lines_shown_are_those_that_are_told(options: dict[str, str]) -> None:
    with pytest.raises(BadOption) as caught:
        SourceOptions.parse({"bootstrap": "b:1", "subscribe": "t", **options}, streaming=False)
    assert f"| `{caught.value}` |" in PAGE.read_text()
