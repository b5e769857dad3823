"""What is wrong with a pipeline, where, and what to do: one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Place:
    """Where something stands; lines and columns count from one, as editors count."""

    file: Path
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Problem:
    """One line for the person who wrote the file; `text` ends with what to do."""

    text: str
    place: Place | None = None
    # Worth saying, but the file can be run as it is.
    is_note: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


class BadPipeline(Exception):
    """The file cannot be run as it is. All that was found is told at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class PipelineFailed(Exception):
    """A run has ended for a cause that is not in the file: one line, no secrets."""
