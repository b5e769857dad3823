"""The pipelines on the pages for people are files that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.language.pipeline_file import read_pipeline
from pipeline_pages import Block, Page, completed, read_page

ROOT = Path(__file__).parents[4]
PAGES = [read_page(ROOT / "README.md"), read_page(ROOT / "docs" / "pipelines.md")]
BLOCKS = [
    pytest.param(page, block, id=f"{page.path.name}:{block.line}")
    for page in PAGES
    for block in page.pipelines
]


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_a_pages_pipeline_is_read_without_a_complaint(
    page: Page, block: Block, tmp_path: Path
) -> None:
    path = page.write(block, tmp_path)
    assert read_pipeline(path, environment={"PGPASSWORD": "secret"}).sinks


def test_both_pages_have_pipelines() -> None:
    assert all(page.pipelines for page in PAGES)


def test_a_part_of_a_file_gets_a_head_and_a_sink_for_its_last_view() -> None:
    part = "sources: {a: {rate: 1}}\nviews: {b: SELECT 1}\n"
    assert completed(part).startswith("version: 1\nname: example\nsources:")
    assert "from: b" in completed(part)
    assert completed("version: 1\nname: x\n") == "version: 1\nname: x\n"


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*/pipeline.yaml")), ids=str)
def test_an_example_is_read_without_a_complaint(file: Path) -> None:
    assert read_pipeline(file, environment={}).tests
