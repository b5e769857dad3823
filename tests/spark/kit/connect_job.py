"""The client of the Spark Connect test: everything over the wire, as a notebook would."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from spark.kit import session
from spark.kit.results import say
from spark.kit.streams import OTTLA, finish, read, read_stream


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    # A free port, so that several test runs do not meet.
    os.environ.update({**session.environment(), "SPARK_TESTING": "1"})
    builder = SparkSession.builder.remote("local[2]")
    own = {"spark.sql.warehouse.dir": f"{job['directory']}/warehouse"}
    for name, value in {**session.SETTINGS, **own}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    assert "connect" in type(spark).__module__, type(spark)
    bootstrap = job["bootstrap"]
    frame = read(spark, OTTLA, bootstrap, subscribe="source", includeHeaders="true")
    rows = sorted(int(row.value) for row in frame.collect())
    say(read=rows, columns=frame.columns)
    writer = spark.range(50).selectExpr("cast(id as string) value").write.format(OTTLA)
    writer.option("bootstrap", bootstrap).option("topic", "written").mode("append").save()
    say(written=True)
    stream = read_stream(spark, OTTLA, bootstrap, subscribe="source", startingOffsets="earliest")
    out = stream.select("key", "value").writeStream.format(OTTLA).option("topic", "streamed")
    out = out.option("kafka.bootstrap.servers", bootstrap)
    out = out.option("checkpointLocation", f"{job['directory']}/checkpoint")
    finish(out.trigger(availableNow=True).start())
    spark.stop()


if __name__ == "__main__":
    main()
