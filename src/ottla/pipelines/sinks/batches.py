"""Which batch a sink has taken last: what makes a batch that comes twice count once.

A query is named by the id in its checkpoint. A new checkpoint is a new query, whose first batch is
new to every sink, although its number is not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Self

from ottla.pipelines.language.problems import PipelineFailed

ONCE: Final = "once"


@dataclass(frozen=True)
class Batch:
    """A batch of a streaming query, or (query `once`) all rows of a run without streams."""

    query: str
    id: str

    @classmethod
    def of_stream(cls, query_id: str, number: int) -> Self:
        return cls(query_id, str(number))

    @classmethod
    def of_run(cls, run_id: str) -> Self:
        return cls(ONCE, run_id)

    @property
    def name(self) -> str:
        """Fit for a file: sorted as the batches of a query came."""
        if self.query == ONCE:
            return self.id
        return f"{int(self.id):08}-{self.query[:8]}"

    def is_new(self, last: Self | None, sink: str) -> bool:
        """False when `last` is this batch; raises when it is a later one."""
        if last is None or last.query != self.query:
            return True
        if last.id == self.id:
            return False
        if self.query != ONCE and int(self.id) < int(last.id):
            raise PipelineFailed(
                f"sink {sink} has already taken batch {last.id} of this checkpoint, and now batch "
                f"{self.id} comes: the checkpoint is an old copy; give --checkpoint the newest "
                "one, or a new directory to begin anew"
            )
        return True

    def to_json(self) -> str:
        return json.dumps({"query": self.query, "batch": self.id})

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(found["query"], found["batch"])
