"""Dead letters of a running pipeline: one flow owns them, none is lost, whatever is changed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.pipelines.language.problems import PipelineFailed
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.filling import put, record
from spark.kit.messages import messages_in
from spark.kit.pipeline_runs import Running, run_once


class Shop:
    """A topic of orders, a topic for its letters, and a file that copies them."""

    def __init__(self, spark: SparkSession, broker: Broker, topic: MakeTopic, where: Path) -> None:
        self.spark = spark
        self.bootstrap = broker.bootstrap
        self.make_topic = topic
        self.orders, self.dead = topic(1), topic(1)
        self.targets = {name: topic(1) for name in ("out", "more")}
        self.directory = where
        self.file = where / "pipeline.yaml"

    def write(
        self, *sinks: str, schema: str = "id int", dead: str | None = None, more: str = ""
    ) -> None:
        lines = "\n".join(
            f"  {name}: {{from: seen, topic: {self.targets[name]}, format: json}}" for name in sinks
        )
        self.file.write_text(f"""
version: 1
name: shop
bootstrap: {self.bootstrap}
sources:
  orders:
    topic: {self.orders}
    format: json
    schema: {schema}
    max_rows_per_batch: 4
    bad_records: {{topic: {dead or self.dead}}}
views:
  seen: SELECT id FROM orders
sinks:
{lines}
{more}
""")

    def send(self, *values: str) -> None:
        put(self.bootstrap, self.orders, [record(value.encode()) for value in values])

    def run(self, **overrides: str) -> Running:
        return run_once(self.spark, self.file, **overrides)

    def letters(self) -> Counter[str]:
        """How often each of the bad records is there."""
        return Counter(
            (one.value or b"").decode() for one in messages_in(self.bootstrap, self.dead)
        )

    def rows(self, sink: str = "out") -> list[str]:
        found = messages_in(self.bootstrap, self.targets[sink])
        return sorted(str(json.loads(one.value or b"")["id"]) for one in found)


@pytest.fixture
def shop(spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path) -> Shop:
    return Shop(spark, broker, topic, tmp_path)


def test_a_bad_record_whose_letter_nobody_takes_is_not_passed_over(shop: Shop) -> None:
    """Then the schema is mended: it comes out good, or its letter is there, and nothing else."""
    full = shop.make_topic(1, {"max.message.bytes": 100})
    shop.send('{"id": 1}', '{"id": "two"}')
    shop.write("out", dead=full, more="restarts: {max: 1, backoff: 1 second}")
    with pytest.raises(PipelineFailed, match="more than the broker takes"):
        shop.run()
    shop.write("out", schema="id string", dead=full)
    shop.run()
    assert shop.rows() == ["1", "two"]
    assert not messages_in(shop.bootstrap, full)


def test_one_of_the_sinks_that_share_a_source_writes_its_letters(shop: Shop) -> None:
    shop.send('{"id": 1}', "{2", '{"id": 3}')
    shop.write("out", "more")
    running = shop.run()
    assert {one.flow for one in running.batches} == {"out", "more"}
    for sink in ("out", "more"):
        assert shop.rows(sink) == ["1", "3"]
        told = [one for one in running.batches if one.flow == sink]
        assert (sum(one.rows_in for one in told), sum(one.bad for one in told)) == (3, 1)
    assert shop.letters() == {"{2": 1}
    # Another order, and whatever is new: the owner stays.
    shop.write("more", "out")
    shop.send("{4")
    shop.run()
    assert shop.letters() == {"{2": 1, "{4": 1}
    assert json.loads((shop.directory / "checkpoint" / "pipeline.json").read_text())["letters"] == {
        "orders": {"owner": "out", "reads": {"kind": "topic", "topics": [shop.orders]}}
    }


FAILING = """
from pathlib import Path

HERE = Path({here!r})

def seen(orders):
    def fail(batches):
        for batch in batches:
            if not (HERE / "failed").exists():
                (HERE / "failed").touch()
                raise OSError("killed in the middle of a batch")
            yield batch
    return orders.select("id").mapInArrow(fail, "id int")
"""


def test_a_batch_that_runs_again_writes_its_letters_again(shop: Shop) -> None:
    """At least once: the letters of the first attempt are there, and those of the second."""
    shop.send('{"id": 1}', "{2", "{3", '{"id": 4}')
    shop.write("out", more="restarts: {max: 20, backoff: 100 milliseconds}")
    text = shop.file.read_text().replace("SELECT id FROM orders", "{python: views:seen}")
    shop.file.write_text(text)
    (shop.directory / "views.py").write_text(FAILING.format(here=str(shop.directory)))
    shop.run()
    assert shop.rows() == ["1", "4"]
    letters = shop.letters()
    assert letters.keys() == {"{2", "{3"}
    assert all(count >= 2 for count in letters.values())


def test_the_letters_of_files_are_written_by_the_flow_that_reads_them(shop: Shop) -> None:
    (shop.directory / "in").mkdir()
    (shop.directory / "in" / "a.json").write_text('{"id": 1}\n{2\n')
    shop.write("out", "more")
    text = shop.file.read_text()
    text = text.replace(f"topic: {shop.orders}", "files: in").replace("max_rows_per_batch: 4", "")
    shop.file.write_text(text)
    running = shop.run()
    assert {one.flow for one in running.batches} == {"out", "more"}
    assert (shop.rows("out"), shop.rows("more")) == (["1"], ["1"])
    assert shop.letters() == {"{2": 1}
    (shop.directory / "in" / "b.json").write_text('{"id": 3}\n{4\n')
    shop.run()
    assert shop.letters() == {"{2": 1, "{4": 1}


def test_the_letters_of_a_table_are_written_once_in_a_run(shop: Shop) -> None:
    (shop.directory / "in").mkdir()
    (shop.directory / "in" / "a.csv").write_text("1\nx\n")
    shop.write("out", "more")
    text = shop.file.read_text().replace("format: json\n    schema", "format: csv\n    schema")
    text = text.replace(f"topic: {shop.orders}", "files: in\n    read: table")
    shop.file.write_text(text.replace("max_rows_per_batch: 4", ""))
    shop.run()
    assert (shop.rows("out"), shop.rows("more")) == (["1"], ["1"])
    assert shop.letters() == {"x": 1}
    shop.run()
    assert shop.letters() == {"x": 2}


def test_the_owner_leaves_while_it_is_ahead(shop: Shop) -> None:
    """The next one passes what has its letters already, and then writes its own."""
    shop.send("{1", '{"id": 2}')
    shop.write("out")
    shop.run()
    shop.send("{3")
    shop.write("more")
    running = shop.run()
    assert shop.letters() == {"{1": 1, "{3": 1}
    (note,) = running.texts("note")
    assert "now written by flow more, from where out has ended" in note
    shop.send("{4")
    assert shop.run().texts("note") == []
    assert shop.letters() == {"{1": 1, "{3": 1, "{4": 1}


def test_the_owner_leaves_while_it_is_behind(shop: Shop) -> None:
    """What the next one has passed already is read once more, for its letters alone."""
    shop.write("out", "more")
    shop.send("{1", '{"id": 2}')
    shop.run()
    # The owner gets nowhere; the other goes on.
    for log in ("offsets", "commits"):
        assert (shop.directory / "checkpoint" / "out" / log / "0").exists()
    keep = shop.directory / "kept"
    shutil.copytree(shop.directory / "checkpoint" / "out", keep)
    shop.send("{3", '{"id": 4}')
    shop.run()
    assert shop.letters() == {"{1": 1, "{3": 1}
    shop.send("{5")
    # As if the owner had not come to the second batch.
    shutil.rmtree(shop.directory / "checkpoint" / "out")
    keep.rename(shop.directory / "checkpoint" / "out")
    shop.write("more")
    running = shop.run()
    (note,) = running.texts("note")
    assert "reading 2 messages again" in note
    # The second batch of the former has left its letters, as a batch does that is not committed.
    assert shop.letters() == {"{1": 1, "{3": 2, "{5": 1}
    assert shop.rows("more") == ["2", "4"]


def test_letters_that_were_once_a_flow_of_their_own(shop: Shop) -> None:
    """A checkpoint from then: its flow of letters is the former owner."""
    shop.write("out")
    shop.send("{1", '{"id": 2}')
    shop.run()
    checkpoint = shop.directory / "checkpoint"
    shutil.copytree(checkpoint / "out", checkpoint / "orders.dead")
    noted = json.loads((checkpoint / "pipeline.json").read_text())
    del noted["letters"]
    noted["flows"]["orders.dead"] = noted["flows"]["out"]
    (checkpoint / "pipeline.json").write_text(json.dumps(noted))
    shop.send("{3")
    (note,) = shop.run().texts("note")
    assert "now written by flow out, from where orders.dead has ended" in note
    assert shop.letters() == {"{1": 1, "{3": 1}


def test_an_owner_whose_folder_is_gone(shop: Shop) -> None:
    shop.write("out")
    shop.send("{1")
    shop.run()
    shutil.rmtree(shop.directory / "checkpoint" / "out")
    shop.write("more")
    (note,) = shop.run().texts("note")
    assert "how far flow out came is not known" in note
    # The new one reads from the start: twice is better than never.
    assert shop.letters() == {"{1": 2}
