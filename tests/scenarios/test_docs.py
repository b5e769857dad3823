"""What the documents promise: commands on them run, the references are up to date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.config import BROKER_SETTINGS
from ottla.testing import Broker

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 60
FENCE = re.compile(
    r"(?P<skip><!-- (?:not run|run with Spark) -->\n+)?"
    r"^```(?P<language>bash|python)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
REFERENCES = (
    *("settings.md", "commands.md", "compatibility.md"),
    *("metrics.md", "alerts.md", "pipeline.md"),
)
PAGES = [
    *(path for path in ROOT.glob("*.md")),
    *(path for path in (ROOT / "docs").rglob("*.md")),
    *(path for path in (ROOT / "examples").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    code: str
    line: int


def blocks_of(text: str) -> list[Block]:
    """The code blocks that are to be run, in their order."""
    return [
        Block(match["language"], match["code"], text.count("\n", 0, match.start("code")) + 1)
        for match in FENCE.finditer(text)
        if not match["skip"]
    ]


def command_of(block: Block, directory: Path) -> list[str]:
    if block.language == "bash":
        return ["bash", "-euo", "pipefail", "-c", block.code]
    is_test = re.search(r"^(async )?def test_", block.code, re.MULTILINE)
    script = directory / (f"test_line_{block.line}.py" if is_test else f"line_{block.line}.py")
    script.write_text(block.code)
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []
    return [sys.executable, *runner, str(script)]


def test_blocks_are_found_and_those_not_to_be_run_are_left_out() -> None:
    text = "a\n```bash\necho 1\n```\n<!-- not run -->\n```bash\nrm\n```\n\n```python\nx = 1\n```\n"
    assert blocks_of(text) == [Block("bash", "echo 1\n", 3), Block("python", "x = 1\n", 11)]


def test_the_code_blocks_for_those_who_try_it_run(tmp_path: Path) -> None:
    """In one directory, one after the other, against one fresh broker instead of 127.0.0.1:9092."""
    pages = ("README.md", "docs/command-line.md", "docs/testing.md")
    blocks = [(page, block) for page in pages for block in blocks_of((ROOT / page).read_text())]
    with Broker() as broker:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OTTLA_BOOTSTRAP": broker.bootstrap,
        }
        for page, block in blocks:
            local = block._replace(
                code=re.sub(r"(127\.0\.0\.1|localhost):9092", broker.bootstrap, block.code)
            )
            result = subprocess.run(
                command_of(local, tmp_path),
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            where = f"{page}, line {block.line}:\n{block.code}"
            assert result.returncode == 0, f"{where}\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("page", REFERENCES)
def test_a_generated_reference_is_what_the_code_says(page: str) -> None:
    script = f"import generate_docs; print(generate_docs.render({page!r}), end='')"
    # Whoever tests a tree that is not installed has put it there.
    places = filter(None, [str(ROOT / "scripts"), os.environ.get("PYTHONPATH")])
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    committed = ROOT / "docs" / "reference" / page
    assert committed.exists(), "run `make docs`"
    assert committed.read_text() == result.stdout, "run `make docs`"


def links_of(page: Path) -> set[tuple[Path, str]]:
    """The files that a page leads to, with the headings there."""
    found = LINK.findall(CODE.sub("", page.read_text()))
    return {((page.parent / file).resolve() if file else page, mark[1:]) for file, mark in found}


def headings_of(page: Path) -> set[str]:
    """As GitHub names them."""
    lines = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", line.lower()) for line in lines)
    return {line.strip().replace(" ", "-") for line in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, heading in links_of(page):
        assert target.exists(), target
        if heading and target.suffix == ".md":
            assert heading in headings_of(target), f"{target} has no {heading}"


def test_the_index_leads_to_every_page() -> None:
    """In one step, or by another page of an index."""
    docs = ROOT / "docs"
    indexes = (docs / "README.md", docs / "adr" / "README.md")
    reached = {target for index in indexes for target, _ in links_of(index)}
    figures = docs / "benchmarks"
    lacking = [page for page in docs.rglob("*.md") if page not in reached and page not in indexes]
    assert [page for page in lacking if figures not in page.parents] == []


def test_the_settings_file_of_the_page_is_understood(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "node.toml").write_text(text)
    shown = subprocess.run(
        [sys.executable, "-m", "ottla", "settings", "show", "node.toml", "--changed"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert shown.returncode == 0, shown.stderr
    assert "/disk-1/ottla,/disk-2/ottla" in shown.stdout


def test_the_page_about_operating_knows_every_alert() -> None:
    rules = (ROOT / "docs" / "alerts.yml").read_text()
    page = (ROOT / "docs" / "operating.md").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert alerts
    assert [alert for alert in alerts if f"[{alert}]" not in page] == []


def test_the_limits_on_the_page_are_the_defaults() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    limits = page.partition("## Limits")[2].partition("\n## ")[0]
    units = {"": 1, "s": 1000, "MiB": 1024 * 1024}
    for row in re.findall(r"^\| .* \| (\d.*?) \| (.*?) \|$", limits, re.MULTILINE):
        told = re.findall(r"([\d,]*\d)(?: (s|MiB))?", row[0])
        names = re.findall(r"`([a-z.]+)`", row[1])
        for (number, unit), name in zip(told, names, strict=True):
            amount = int(number.replace(",", "")) * units[unit]
            assert BROKER_SETTINGS[name].default // amount == 1, name


@pytest.mark.parametrize(
    "name",
    [
        *("ottla.service", "ottla-workers.conf", "ottla.properties", "../Dockerfile"),
        *("compose.yaml", "kubernetes/ottla.yaml", "kubernetes/brokers.yaml"),
    ],
)
def test_what_the_page_about_operating_names_is_there(name: str) -> None:
    assert (ROOT / "packaging" / name).is_file()
    assert Path(name).name in (ROOT / "docs" / "operating.md").read_text()
