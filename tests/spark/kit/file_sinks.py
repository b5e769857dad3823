"""What a file sink of Spark's has committed, without a Spark to read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq


def committed_rows(directory: Path) -> list[dict[str, Any]]:
    """Of the files in the sink's own list: what a killed task has left counts for nothing."""
    logs = directory / "_spark_metadata"
    files = {
        json.loads(line)["path"]
        for log in logs.iterdir()
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()[1:]
    }
    paths = [unquote(urlsplit(file).path) for file in sorted(files)]
    return [row for path in paths for row in pq.read_table(path).to_pylist()]
