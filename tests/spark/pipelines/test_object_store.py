"""Checkpoints in an object store, by S3's API: one driver is killed, the next goes on there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ottla.testing.plugin import BrokerFactory
from scenarios.polling import until
from spark.kit.file_sinks import committed_rows
from spark.kit.messages import messages_in
from spark.kit.object_store import BUCKET, KEY, REGION, SECRET, object_store
from spark.kit.pipeline_feeds import Feed, Sent
from spark.kit.pipeline_runs import PATIENCE_S, CommandLine
from spark.kit.toolchain import require, s3_jars

PARTITIONS = 2
KEYS = 5
ROWS_PER_BATCH = 50
ROWS = 400

FILE = """
version: 1
name: in-the-cloud
bootstrap: {bootstrap}
sources:
  numbers: {{topic: numbers, schema: "id bigint", max_rows_per_batch: {rows_per_batch}}}
views:
  plain: SELECT id, _key AS name FROM numbers
  totals: SELECT name, sum(id) AS total FROM plain GROUP BY name
sinks:
  files: {{from: plain, files: out, format: parquet}}
  sums: {{from: totals, topic: sums, key: name, mode: update}}
spark:
  spark.sql.shuffle.partitions: 1
  spark.hadoop.fs.s3a.endpoint: {endpoint}
  spark.hadoop.fs.s3a.endpoint.region: {region}
  spark.hadoop.fs.s3a.path.style.access: true
  spark.hadoop.fs.s3a.access.key: {key}
  spark.hadoop.fs.s3a.secret.key: ${{STORE_SECRET}}
"""


def row(number: int) -> Sent:
    return Sent(b"key-%d" % (number % KEYS), json.dumps({"id": number}).encode())


@pytest.mark.seconds(900)
def test_a_killed_driver_goes_on_from_a_checkpoint_in_an_object_store(
    ottla_broker_factory: BrokerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = s3_jars()
    if not jars:
        require("java", "mvn")
    monkeypatch.setenv("STORE_SECRET", SECRET)
    broker = ottla_broker_factory()
    for name in ("numbers", "sums"):
        broker.create_topic(name, PARTITIONS)
    with Feed(broker.bootstrap, "numbers", row) as feed:
        feed.allow(ROWS)
        feed.until_idle()
    file = tmp_path / "pipeline.yaml"
    with object_store() as store:
        text = FILE.format(
            bootstrap=broker.bootstrap,
            rows_per_batch=ROWS_PER_BATCH,
            endpoint=store.endpoint,
            region=REGION,
            key=KEY,
        )
        file.write_text(text)
        arguments = ["pipeline", "run", str(file), "--checkpoint", f"s3a://{BUCKET}/checkpoint"]
        arguments += ["--master=local[2]", "--jars", ",".join(map(str, jars))]
        with CommandLine(arguments, tmp_path) as child:
            until(
                lambda: child.check() and store.names("checkpoint/sums/commits/1"),
                "no batch in the checkpoint",
                PATIENCE_S,
            )
        assert store.names("checkpoint/sums/state/")
        with CommandLine([*arguments, "--once"], tmp_path) as child:
            told = child.wait(PATIENCE_S)
    batches = [json.loads(line) for line in told.splitlines() if line.startswith('{"type":"batch"')]
    assert all(one["batch"] > 0 for one in batches), "it went on, and did not begin anew"
    files = Counter(one["id"] for one in committed_rows(tmp_path / "out"))
    assert files == Counter(range(ROWS)), "files are exactly once"
    sums: dict[str, int] = {}
    for message in messages_in(broker.bootstrap, "sums"):
        value = json.loads(message.value or b"")
        sums[value["name"]] = max(value["total"], sums.get(value["name"], 0))
    expected = Counter()
    for number in range(ROWS):
        expected[f"key-{number % KEYS}"] += number
    assert sums == expected, "what is counted is counted once"
