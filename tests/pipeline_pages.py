"""Pipelines as they stand on the pages for people: found, completed, written where they can run.

Every ```yaml block is a pipeline. One without `version` is a part of a file: the head, and a sink
for its last view, are added. A block after `<!-- file: NAME -->` is a file that lies beside them,
such as SQL, Python or the rows of a test. `<!-- not a pipeline -->` says that a block is none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import yaml

FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
NAMED = re.compile(r"# (\S+\.yaml)\n")


class Page(NamedTuple):
    path: Path
    pipelines: list[Block]
    files: dict[str, str]

    def write(self, block: Block, directory: Path) -> Path:
        """The pipeline's file, with all files of the page beside it."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        named = NAMED.match(block.text)
        path = directory / (named[1] if named else "pipeline.yaml")
        path.write_text(completed(block.text))
        return path


class Block(NamedTuple):
    line: int
    text: str


def read_page(path: Path) -> Page:
    text = path.read_text()
    pipelines, files = [], {}
    for match in FENCE.finditer(text):
        note = match["note"] or ""
        if note.startswith("file: "):
            files[note.removeprefix("file: ")] = match["text"]
        elif match["language"] == "yaml" and note != "not a pipeline":
            line = text.count("\n", 0, match.start("text")) + 1
            pipelines.append(Block(line, match["text"]))
    return Page(path, pipelines, files)


def completed(text: str) -> str:
    """A part of a file as a whole one; a whole one as it is."""
    content = yaml.safe_load(text)
    if "version" in content:
        return text
    head = "version: 1\nname: example\n"
    if "sinks" in content:
        return head + text
    last = [*content.get("sources", ()), *content.get("views", ())][-1]
    return f"{head}{text}\nsinks: {{out: {{from: {last}, topic: out}}}}\n"
