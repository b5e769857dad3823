"""Pipeline files for tests: a small whole one, and what is said about others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.language.problems import BadPipeline

SHOP = """\
version: 1
name: shop-totals
bootstrap: ${OTTLA_BOOTSTRAP:-127.0.0.1:9092}
sources:
  orders:
    topic: orders
    start: earliest                     # only where there is no checkpoint yet
    format: json
    schema: id string, shop string, amount decimal(10,2), at timestamp
    watermark: {column: at, delay: 2 minutes}
    bad_records: {topic: orders.dead}   # or fail, or drop
views:
  totals: |
    SELECT window.start AS minute, shop, sum(amount) AS total
    FROM orders
    GROUP BY window(at, '1 minute'), shop
sinks:
  out: {from: totals, topic: shop-totals, key: shop, format: json, mode: append}
tests:
  sums_by_shop:                         # each file is one micro-batch
    given: {orders: [day1.jsonl, late.jsonl]}
    expect: {totals: totals.jsonl}
"""

# Every kind of source, view and sink with most of their keys.
EVERYTHING = """\
version: 1
name: every.thing-1
bootstrap: a:9092, b:9092
trigger: 10 seconds
restarts: {max: 3, backoff: 2 seconds, max_backoff: 1 minute 30 seconds}
kafka: {security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: u,
        sasl.password: "${KAFKA_PASSWORD}"}
spark: {spark.sql.shuffle.partitions: 4, spark.sql.ansi.enabled: true}
sources:
  clicks:
    topics: [clicks, clicks.old]
    start: 2026-01-31T12:00:00Z
    format: avro
    schema: '{"type": "record", "name": "C", "fields": [{"name": "id", "type": "long"}]}'
    framing: confluent
    schema_ids: [12, 15]
    key: {format: json, schema: "shop string"}
    headers: true
    max_rows_per_batch: 100000
    deduplicate: [id]
    bad_records: drop
    options: {minPartitions: 8, kafka.fetch.max.bytes: 1000000}
  prices: {files: in/*.csv, format: csv, schema: "id string, price double", read: table,
           options: {header: true}}
  drops: {files: s3a://bucket/in, format: parquet, max_files_per_batch: 10}
  customers: {jdbc: "jdbc:postgresql://h/db", table: customers, user: u, password: "${PGPASSWORD}"}
  history: {delta: /data/history, read: stream}
  ticks: {rate: 100}
views:
  one: SELECT * FROM clicks
  two: {sql: "SELECT * FROM one", watermark: {column: at, delay: 1 hour}, deduplicate: id}
  three: {file: three.sql}
  four: {python: "shop.views:four"}
sinks:
  topic: {from: one, topic: out, key: [a, b], format: string, headers: h, mode: update}
  files: {from: drops, files: out/, format: parquet, partition_by: day}
  table: {from: two, current_table: current/, keys: id, sequence_by: at, apply_as_deletes: gone}
  jdbc: {from: four, jdbc: "jdbc:postgresql://h/db", table: t, user: u, mode: upsert, keys: id}
  delta: {from: Three, delta: d, mode: complete}
tests:
  first test:
    given: {clicks: clicks.jsonl, ticks: []}
    expect: {One: one.jsonl, clicks.bad: bad.jsonl}
"""
SECRETS: Mapping[str, str] = {"KAFKA_PASSWORD": "kafka-pass-1", "PGPASSWORD": "pg-pass-2"}


def write(directory: Path, text: str) -> Path:
    file = directory / "p.yaml"
    file.write_text(text)
    return file


def write_everything(directory: Path) -> Path:
    (directory / "three.sql").write_text("SELECT *\nFROM two\n")
    return write(directory, EVERYTHING)


def read(
    directory: Path,
    text: str,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Pipeline:
    file = write(directory, text)
    return read_pipeline(file, environment=environment or {}, overrides=overrides or {})


def problems(
    directory: Path,
    text: str,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> list[str]:
    """What is said about the file: `line:column: text`."""
    with pytest.raises(BadPipeline) as caught:
        read(directory, text, environment, overrides)
    lines = [str(problem) for problem in caught.value.problems]
    assert all("\n" not in line for line in lines)
    return [line.removeprefix(f"{directory / 'p.yaml'}:") for line in lines]


def shop_with(**sections: str) -> str:
    """The small file with sections of its own in the place of the usual ones."""
    kept = {
        "version": "version: 1\n",
        "name": "name: p\n",
        "sources": "sources:\n  orders: {topic: orders, format: string}\n",
    }
    kept.update({name: dedent(text) for name, text in sections.items()})
    return "".join(kept.values())
