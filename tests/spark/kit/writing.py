"""The job of a test in test_write.py: writes in two halves, between which it waits for a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from spark.kit import session

TIMEOUT_S = 120.0
ROWS_PER_PIECE = 200
# More than what the writer puts together before it sends.
FILLER = "x" * 2000


def main() -> None:
    job = json.loads(sys.argv[1])
    half, go_on = job["rows"] // 2 // job["tasks"], job["go_on"]

    def in_halves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        for part in (numbers[:half], numbers[half:]):
            # In pieces, of which only the last stays in a buffer on its way.
            for at in range(0, len(part), ROWS_PER_PIECE):
                values = [f"{number} {FILLER}" for number in part[at : at + ROWS_PER_PIECE]]
                yield pa.RecordBatch.from_pydict({"value": values})
            deadline = time.monotonic() + TIMEOUT_S
            while not Path(go_on).exists() and time.monotonic() < deadline:
                time.sleep(0.05)

    spark = session.start(
        Path(job["directory"], "spark"),
        master="local[2,4]",
        settings={
            "spark.task.maxFailures": "4",
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_PIECE),
        },
    )
    rows = spark.range(0, job["rows"], numPartitions=job["tasks"])
    frame = rows.mapInArrow(in_halves, "value string")
    writer = frame.write.format("ottla").mode("append").option("topic", job["topic"])
    writer.option("kafka.bootstrap.servers", job["bootstrap"]).save()
    spark.stop()


if __name__ == "__main__":
    main()
