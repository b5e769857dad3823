"""A pipeline's file is changed between two runs: its checkpoint follows, or the run is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.pipelines.language.problems import BadPipeline
from ottla.pipelines.running.checkpoints import Local, Remote
from ottla.testing import Broker
from spark.kit.filling import put, record
from spark.kit.messages import messages_in
from spark.kit.pipeline_runs import run_once

TOPICS = ("orders", "payments", "totals", "paid", "others", "more")

FILE = """
version: 1
name: shop
bootstrap: {bootstrap}
sources:
  orders:
    topic: orders
    format: json
    schema: id string, shop string, amount int, at timestamp
    watermark: {{column: at, delay: 2 minutes}}
  payments:
    topic: payments
    format: json
    schema: id string, amount int, at timestamp
    watermark: {{column: at, delay: 2 minutes}}
views:
  totals: |
    SELECT window.start AS minute, shop, sum(amount) AS total
    FROM orders GROUP BY window(at, '1 minute'), shop
  paid: |
    SELECT o.id, p.amount FROM orders o JOIN payments p ON o.id = p.id
  plain: SELECT id, shop FROM orders WHERE amount > 0
sinks:
  totals: {{from: totals, topic: totals, key: shop, format: json, mode: update}}
  paid: {{from: paid, topic: paid, format: json}}
  plain: {{from: plain, files: out, format: json}}
restarts: {{max: 20}}
spark:
  spark.sql.shuffle.partitions: 1
"""


def order(number: int, shop: str, amount: int) -> str:
    row = {"id": f"o{number}", "shop": shop, "amount": amount, "at": "2026-01-31T12:00:10Z"}
    return json.dumps(row)


class Shop:
    """The pipeline after its first run, with one order and its payment."""

    def __init__(self, spark: SparkSession, broker: Broker, directory: Path) -> None:
        self.spark = spark
        self.bootstrap = broker.bootstrap
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        # Topics of one broker are shared with all tests: these have a prefix of their own.
        self.prefix = f"{directory.name}."
        for name in TOPICS:
            broker.create_topic(self.prefix + name)
        self.text = self._own(FILE.format(bootstrap=self.bootstrap))
        self.send("orders", order(1, "north", 10))
        self.send("payments", json.dumps({"id": "o1", "amount": 10, "at": "2026-01-31T12:00:20Z"}))
        self.run(self.text)

    def _own(self, text: str) -> str:
        for name in TOPICS:
            text = text.replace(f"topic: {name}\n", f"topic: {self.prefix}{name}\n")
            text = text.replace(f"topic: {name},", f"topic: {self.prefix}{name},")
        return text

    def changed(self, *changes: tuple[str, str]) -> str:
        text = self.text
        for old, new in changes:
            assert text.count(self._own(old)) >= 1, old
            text = text.replace(self._own(old), self._own(new), 1)
        return text

    def send(self, topic: str, *values: str) -> None:
        rows = [record(value.encode()) for value in values]
        put(self.bootstrap, self.prefix + topic, rows)

    def received(self, topic: str) -> list[str]:
        found = messages_in(self.bootstrap, self.prefix + topic)
        return [(one.value or b"").decode() for one in found]

    def run(self, text: str) -> None:
        file = self.directory / "pipeline.yaml"
        file.write_text(text)
        run_once(self.spark, file)

    def refused(self, *changes: tuple[str, str]) -> str:
        with pytest.raises(BadPipeline) as bad:
            self.run(self.changed(*changes))
        return str(bad.value).replace(self.prefix, "")


# What is changed into what, and what is said then.
REFUSED = [
    (
        "'1 minute'",
        "'5 minutes'",
        "flow totals cannot follow a change of what is kept as state in totals: "
        "GROUP BY window(1 min), shop: sum(amount) → GROUP BY window(5 min), shop: sum(amount)",
    ),
    (
        "sum(amount) AS total",
        "max(amount) AS total",
        "GROUP BY window(1 min), shop: sum(amount) → GROUP BY window(1 min), shop: max(amount)",
    ),
    (
        "window(at, '1 minute'), shop",
        "window(at, '1 minute'), shop, id",
        "GROUP BY window(1 min), shop: sum(amount) → GROUP BY window(1 min), shop, id: sum(am",
    ),
    (
        "orders o JOIN payments p",
        "payments p JOIN orders o",
        "flow paid cannot follow a change of the order of its sources: "
        "orders, payments → payments, orders",
    ),
    (
        "ON o.id = p.id",
        "ON o.id = p.id AND p.amount > 0",
        "flow paid cannot follow a change of what is kept as state in paid: Join Inner, "
        "(id = id) → Join Inner, ((id = id) AND (amount > 0))",
    ),
    (
        "topic: orders\n",
        "topics: [PREFIXorders, PREFIXothers]\n",
        "a change of source orders: topic orders → topic orders, others",
    ),
    (
        "topic: totals, key: shop",
        "topic: more, key: shop",
        "flow totals cannot follow a change of the sink: topic totals → topic more",
    ),
    ("files: out", "files: elsewhere", "flow plain cannot follow a change of the sink: files "),
    ("mode: update", "mode: complete", "totals cannot follow a change of mode: update → compl"),
    (
        "plain: SELECT id, shop",
        "plain: SELECT DISTINCT id, shop",
        "flow plain cannot follow a change of what is kept as state in plain: nothing → SELECT",
    ),
    ("name: shop", "name: bank", "is the checkpoint of the pipeline shop, not of bank"),
]


def test_file_is_changed_between_runs(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """One story, since a first run is what takes time."""
    shop = Shop(spark, broker, tmp_path)
    for old, new, said in REFUSED:
        line = shop.refused((old, new.replace("PREFIX", shop.prefix)))
        assert said in line
        assert "--checkpoint" in line
    changes_that_a_checkpoint_follows(shop)
    # A sink is taken out, and its checkpoint waits for it.
    shop.run(shop.changed(("  paid: {from", "  # paid: {from")))
    assert "paid" in shop.refused(("orders o JOIN payments p", "payments p JOIN orders o"))
    flow_whose_checkpoint_is_deleted_begins_anew(shop)


def changes_that_a_checkpoint_follows(shop: Shop) -> None:
    text = shop.changed(
        ("sum(amount) AS total\n", "sum(amount) AS summe\n"),
        ("WHERE amount > 0", "WHERE amount > 50"),
        ("delay: 2 minutes", "delay: 20 minutes"),
        ("topic: orders\n", "topic: orders\n    start: latest\n"),
        ("SELECT o.id, p.amount", "SELECT p.amount"),
        ("  plain: {", "  fresh: {from: orders, topic: more, format: json}\n  plain: {"),
        ("spark:\n", "trigger: 1 second\nspark:\n"),
    )
    shop.send("orders", order(2, "north", 20), order(3, "north", 100))
    shop.send("payments", json.dumps({"id": "o2", "amount": 20, "at": "2026-01-31T12:00:20Z"}))
    shop.run(text)
    totals = [json.loads(one) for one in shop.received("totals")]
    assert [one.get("total", one.get("summe")) for one in totals] == [10, 130]
    assert [json.loads(one) for one in shop.received("paid")][1:] == [{"amount": 20}]
    files = sorted(shop.directory.glob("out/*.json"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == ["o1", "o3"]


def flow_whose_checkpoint_is_deleted_begins_anew(shop: Shop) -> None:
    shutil.rmtree(shop.checkpoint / "totals")
    # What a driver leaves that is killed while it writes the first offsets.
    leftover = shop.checkpoint / "totals" / "offsets" / ".0.6d3c.tmp"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    before = len(shop.received("totals"))
    shop.run(shop.changed(("'1 minute'", "'1 hour'")))
    assert len(shop.received("totals")) > before


def test_note_elsewhere_than_on_this_machine(spark: SparkSession, tmp_path: Path) -> None:
    store = Remote(spark, tmp_path.as_uri())
    assert store.read() is None
    assert not store.has_flow("out")
    for document in ({"version": 1}, {"version": 1, "flows": {"a": "ä"}}):
        store.write(json.dumps(document, indent=1))
        assert json.loads(store.read() or "") == document
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metadata").write_text('{"id":"x"}')
    assert store.has_flow("out")
    assert store.batches("out", "offsets") == {}
    (tmp_path / "out" / "offsets").mkdir()
    for number in (9, 10):
        (tmp_path / "out" / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")
    (tmp_path / "out" / "offsets" / ".10.crc").write_text("")
    assert store.batches("out", "offsets") == {9: "v1\n{}\n9", 10: "v1\n{}\n10"}
    assert store.batches("out", "offsets") == Local(tmp_path).batches("out", "offsets")


def test_what_is_noted_elsewhere_is_there_whatever_becomes_of_the_next_note(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's overwriting deletes first: a driver that dies then has left nothing in that place."""
    store, aside = Remote(spark, f"file://{tmp_path}"), tmp_path / "aside"
    assert store.read() is None
    for text in ("first", "second", "third"):
        before = store.read()
        store.write(json.dumps({"of": text}))
        assert json.loads(store.read() or "") == {"of": text}
        found = tmp_path.glob("pipeline.json*/part-*")
        (written,) = [one.parent for one in found if json.loads(one.read_text())["of"] == text]
        shutil.move(written, aside)
        assert store.read() == before
        shutil.move(aside, written)
