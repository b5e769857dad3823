"""The pipeline file: what it says becomes the model, what is wrong with it is told all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.language.model import (
    BadRecords,
    CurrentTableSink,
    DeltaSink,
    DeltaSource,
    FileSink,
    FileSource,
    JdbcSink,
    JdbcSource,
    PythonFunction,
    RateSource,
    Restarts,
    Sql,
    TopicSink,
    TopicSource,
    Watermark,
)
from ottla.pipelines.language.pipeline_file import PROBLEMS_MAX, read_pipeline
from ottla.pipelines.language.problems import Place
from unit.pipelines.pipeline_files import (
    SECRETS,
    SHOP,
    problems,
    read,
    shop_with,
    write,
    write_everything,
)

# ------------------------------------------------------------------------------------ what is read


def test_the_issues_example(tmp_path: Path) -> None:
    pipeline = read(tmp_path, SHOP, {"OTTLA_BOOTSTRAP": "broker:1234"})
    file = tmp_path / "p.yaml"
    assert (pipeline.name, pipeline.file) == ("shop-totals", file)
    assert pipeline.bootstrap == "broker:1234"
    assert pipeline.sources == {
        "orders": TopicSource(
            name="orders",
            place=Place(file, 5, 3),
            topics=("orders",),
            schema="id string, shop string, amount decimal(10,2), at timestamp",
            watermark=Watermark("at", "2 minutes"),
            bad_records=BadRecords("dead_letter", "orders.dead"),
        )
    }
    assert pipeline.views["totals"].place == Place(file, 13, 3)
    body = pipeline.views["totals"].body
    assert isinstance(body, Sql)
    assert body.text.splitlines()[1] == "FROM orders"
    assert pipeline.sinks == {
        "out": TopicSink(
            name="out", place=Place(file, 18, 3), input="totals", topic="shop-totals", key=("shop",)
        )
    }
    case = pipeline.tests["sums_by_shop"]
    assert case.given == {"orders": (tmp_path / "day1.jsonl", tmp_path / "late.jsonl")}
    assert case.expect == {"totals": tmp_path / "totals.jsonl"}
    assert (pipeline.trigger, pipeline.restarts) == (None, Restarts(5, 1.0, 60.0))


def test_every_kind_of_source(tmp_path: Path) -> None:
    sources = read_pipeline(write_everything(tmp_path), environment=SECRETS).sources
    clicks = sources["clicks"]
    assert isinstance(clicks, TopicSource)
    assert clicks.topics == ("clicks", "clicks.old")
    assert (clicks.start, clicks.format) == ("2026-01-31T12:00:00Z", "avro")
    assert (clicks.schema_ids, clicks.key_schema_ids) == ((12, 15), ())
    assert clicks.writer_schemas == ()
    assert (clicks.key_format, clicks.key_schema) == ("json", "shop string")
    assert (clicks.headers, clicks.max_rows_per_batch) == (True, 100_000)
    assert (clicks.deduplicate, clicks.bad_records) == (("id",), BadRecords("drop"))
    assert clicks.options == {"minPartitions": "8", "kafka.fetch.max.bytes": "1000000"}
    prices, drops = sources["prices"], sources["drops"]
    assert isinstance(prices, FileSource)
    assert isinstance(drops, FileSource)
    assert (prices.path, prices.read) == (str(tmp_path / "in/*.csv"), "table")
    assert prices.options == {"header": "true"}
    assert (drops.path, drops.read, drops.schema) == ("s3a://bucket/in", "stream", None)
    assert drops.max_files_per_batch == 10
    customers = sources["customers"]
    assert isinstance(customers, JdbcSource)
    assert (customers.url, customers.table) == ("jdbc:postgresql://h/db", "customers")
    assert (customers.user, customers.password) == ("u", "pg-pass-2")
    history, ticks = sources["history"], sources["ticks"]
    assert isinstance(history, DeltaSource)
    assert history.path == "/data/history"
    assert isinstance(ticks, RateSource)
    assert ticks.rows_per_second == 100


def test_every_kind_of_view_and_sink(tmp_path: Path) -> None:
    pipeline = read_pipeline(write_everything(tmp_path), environment=SECRETS)
    views, sinks = pipeline.views, pipeline.sinks
    assert views["two"].watermark == Watermark("at", "1 hour")
    assert views["two"].deduplicate == ("id",)
    assert views["three"].body == Sql("SELECT *\nFROM two\n", Place(tmp_path / "three.sql", 1, 1))
    assert views["four"].body == PythonFunction(
        "shop.views", "four", Place(tmp_path / "p.yaml", 33, 18)
    )
    topic, files, table = sinks["topic"], sinks["files"], sinks["table"]
    assert isinstance(topic, TopicSink)
    assert (topic.key, topic.format, topic.headers) == (("a", "b"), "string", "h")
    assert topic.mode == "update"
    assert isinstance(files, FileSink)
    assert (files.input, files.path) == ("drops", str(tmp_path / "out"))
    assert files.partition_by == ("day",)
    assert isinstance(table, CurrentTableSink)
    assert (table.mode, table.keys) == ("upsert", ("id",))
    assert (table.sequence_by, table.apply_as_deletes) == ("at", "gone")
    assert table.tombstone_life_s == 7 * 24 * 3600
    jdbc, delta = sinks["jdbc"], sinks["delta"]
    assert isinstance(jdbc, JdbcSink)
    assert (jdbc.mode, jdbc.keys, jdbc.password) == ("upsert", ("id",), None)
    assert isinstance(delta, DeltaSink)
    assert (delta.mode, delta.path) == ("complete", str(tmp_path / "d"))


def test_names_have_one_spelling(tmp_path: Path) -> None:
    """SQL does not tell large letters from small, so `from: Three` means the view three."""
    pipeline = read_pipeline(write_everything(tmp_path), environment=SECRETS)
    assert pipeline.sinks["delta"].input == "three"
    assert list(pipeline.tests["first test"].expect) == ["one", "clicks.bad"]


def test_the_rest_of_the_file(tmp_path: Path) -> None:
    pipeline = read_pipeline(write_everything(tmp_path), environment=SECRETS)
    assert pipeline.bootstrap == "a:9092, b:9092"
    assert pipeline.trigger == "10 seconds"
    assert pipeline.restarts == Restarts(3, 2.0, 90.0)
    assert pipeline.spark == {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.ansi.enabled": "true",
    }
    assert pipeline.kafka["sasl.password"] == "kafka-pass-1"
    assert pipeline.tests["first test"].given == {
        "clicks": (tmp_path / "clicks.jsonl",),
        "ticks": (),
    }


def test_bootstrap_comes_from_the_environment_where_the_file_has_none(tmp_path: Path) -> None:
    assert read(tmp_path, shop_with()).bootstrap == "127.0.0.1:9092"
    assert read(tmp_path, shop_with(), {"OTTLA_BOOTSTRAP": "b:1"}).bootstrap == "b:1"


def test_addresses_of_all_kinds(tmp_path: Path) -> None:
    addresses = "a:1, [::1]:2,PLAINTEXT://b.c:3"
    assert read(tmp_path, shop_with(b=f'bootstrap: "{addresses}"\n')).bootstrap == addresses


def test_paths_are_relative_to_the_file_and_not_to_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    write(inside, shop_with(sources="sources:\n  a: {files: ../in, format: parquet}\n"))
    monkeypatch.chdir(tmp_path)
    source = read_pipeline(Path("inside/p.yaml"), environment={}).sources["a"]
    assert isinstance(source, FileSource)
    assert source.path == str(tmp_path / "in")
    assert str(source.place) == "inside/p.yaml:4:3"


def test_passwords_are_no_part_of_what_is_shown(tmp_path: Path) -> None:
    pipeline = read_pipeline(write_everything(tmp_path), environment=SECRETS)
    assert pipeline.secrets == {"kafka-pass-1", "pg-pass-2"}
    assert not any(secret in repr(pipeline) for secret in pipeline.secrets)


# ---------------------------------------------------------------------------------- what is wrong


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
version: 1
name: shop totals
surces: {}
sources:
  orders:
    topic: orders
    fromat: json
    start: first
    watermark: {column: at, delay: 2 mins}
  clicks: {topc: clicks}
views:
  totals:
sinks:
  out: {from: total, topic: a b}
trigger: 10s
"""
    assert problems(tmp_path, text) == [
        "2:7: name is 'shop totals'; wanted: a name, for example shop-totals",
        "3:1: the key surces is unknown; did you mean sources?",
        "5:3: format: json in sources.orders needs the key schema; add `schema: id string, amount "
        "decimal(10,2)`",
        "7:5: the key fromat is unknown in sources.orders; did you mean format?",
        "8:12: sources.orders.start is 'first'; wanted: earliest, latest, or a time such as "
        "2026-01-31T12:00:00Z",
        "9:36: sources.orders.watermark.delay is '2 mins'; wanted: a duration such as 10 seconds "
        "or 2 minutes",
        "10:3: sources.clicks needs one of the keys topic, topics, files, jdbc, delta or rate; did "
        "you mean topic?",
        "12:10: views.totals has no value; wanted: a SELECT, for example SELECT * FROM orders, or "
        "a mapping of keys, one of them sql, file or python",
        "14:15: sinks.out.from: total is no source and no view; did you mean totals?",
        "14:29: sinks.out.topic is 'a b'; wanted: a topic's name, for example orders",
        "15:10: trigger is '10s'; wanted: a duration such as 10 seconds or 2 minutes",
    ]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("version: 2\nsurces: x\n", "1:10: version 2 of the pipeline file is unknown to this "
         "Ottla, which reads version 1; write `version: 1`, or use a newer Ottla"),
        ("version: one\n", "1:10: version one of the pipeline file is unknown to this Ottla, "
         "which reads version 1; write `version: 1`, or use a newer Ottla"),
        ("version:\n", "1:9: version has no value; wanted: 1"),
        ("", "1:1: the key version is missing; add `version: 1`"),
    ],
)  # fmt: skip
def test_the_version_is_the_first_thing_to_be_right(
    version: str, expected: str, tmp_path: Path
) -> None:
    assert problems(tmp_path, shop_with(version=version)) == [expected]


def test_ids_with_schemas_of_their_own(tmp_path: Path) -> None:
    ids = """, schema_ids: {12: '"int"', 15: '"long"'}, """
    key = """key: {format: avro, schema: '"long"', schema_ids: {7: '"int"'}}"""
    source = f"sources:\n  a: {CONFLUENT.format(ids + key)}\n"
    text = f"version: 1\nname: p\n{source}sinks:\n  s: {{from: a, topic: out}}\n"
    (tmp_path / "p.yaml").write_text(text)
    found = read_pipeline(tmp_path / "p.yaml").sources["a"]
    assert isinstance(found, TopicSource)
    assert (found.schema_ids, found.writer_schemas) == ((12, 15), ('"int"', '"long"'))
    assert (found.key_schema_ids, found.key_writer_schemas) == ((7,), ('"int"',))


CONFLUENT = "{{topic: t, format: avro, schema: '\"int\"', framing: confluent{}}}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{topic: t, files: x}", "sources.a has topic and files; a source has one of topic, "
         "topics, files, jdbc, delta or rate"),
        ("{topic: t, topics: [u]}", "sources.a has topic and topics; a source has one of topic, "
         "topics, files, jdbc, delta or rate"),
        ("{}", "sources.a needs one of the keys topic, topics, files, jdbc, delta or rate"),
        ("orders", "sources.a is 'orders'; wanted: a mapping of keys, one of them topic, topics, "
         "files, jdbc, delta or rate"),
        ("[topic]", "sources.a is a list; wanted: a mapping of keys, one of them topic, topics, "
         "files, jdbc, delta or rate"),
        ("{topics: [], format: bytes}", "sources.a.topics is a list; wanted: a topic's name, for "
         "example orders, or a list of such"),
        ("{topic: t, format: jsn}", "sources.a.format is 'jsn'; wanted: json, avro, string or "
         "bytes; did you mean json?"),
        ("{topic: t, format: jsn, schema: id int}", "sources.a.format is 'jsn'; wanted: json, "
         "avro, string or bytes; did you mean json?"),
        ("{topic: t, format: string, schema: id int}", "sources.a.schema goes only with format: "
         "json or avro; remove it, or change format"),
        ("{topic: t, schema: id strin}", "sources.a.schema: "),
        ("{topic: t, format: avro, schema: x}", "sources.a.schema: "),
        ("{topic: t, format: bytes, framing: confluent}", "sources.a.framing goes only with "
         "format: avro; remove it"),
        (CONFLUENT.format(""), "framing: confluent in sources.a needs the key schema_ids: the ids "
         "that the registry has given to schemas which fit this one, for example [12, 15]. "
         "`ottla consume t --from-beginning --max 1 --format %v | od -An -j1 -N4 -tu4 "
         "--endian=big` prints the id of the first value"),
        (CONFLUENT.format(", schema_ids: 12, key: {format: avro, schema: '\"int\"'}"), "framing: "
         "confluent in sources.a.key needs the key schema_ids: the ids that the registry has given "
         "to schemas which fit this one, for example [12, 15]. `ottla consume t --from-beginning "
         "--max 1 --format %k | od -An -j1 -N4 -tu4 --endian=big` prints the id of the first key"),
        (CONFLUENT.format(", schema_ids: [12, x]"), "sources.a.schema_ids is 'x'; wanted: a "
         "whole number from 0"),
        (CONFLUENT.format(", schema_ids: 4294967296"), "sources.a.schema_ids is '4294967296'; "
         "wanted: a whole number from 0"),
        (CONFLUENT.format(", schema_ids: {}"), "sources.a.schema_ids is empty; wanted: at least "
         "one schema"),
        (CONFLUENT.format(", schema_ids: {new: '\"int\"'}"), "'new' is no name for a schema; use "
         "the id that the registry has given it"),
        (CONFLUENT.format(", schema_ids: {12: '\"int\"', 15: long}"), "sources.a.schema_ids: "
         "schema 15: it is no Avro schema: "),
        (CONFLUENT.format(", schema_ids: 12, key: {schema_ids: 12}"), "sources.a.key.schema_ids "
         "goes only with format: avro; remove it, or change format"),
        ("{topic: t, format: avro, schema: '\"int\"', schema_ids: 12}", "sources.a.schema_ids goes "
         "only with framing: confluent; remove it, or change framing"),
        ("{topic: t, format: bytes, schema_ids: 12}", "sources.a.schema_ids goes only with format: "
         "avro; remove it, or change format"),
        ("{topic: t, format: bytes, key: {format: json}}", "format: json in sources.a.key needs "
         "the key schema; add it: a schema"),
        ("{topic: t, format: bytes, headers: maybe}", "sources.a.headers is 'maybe'; wanted: true "
         "or false"),
        ("{topic: t, format: bytes, max_rows_per_batch: 0}", "sources.a.max_rows_per_batch is '0'; "
         "wanted: a whole number from 1"),
        ("{topic: t, format: bytes, max_rows_per_batch: 1_000}", "sources.a.max_rows_per_batch is "
         "'1_000'; wanted: a whole number from 1"),
        ("{topic: t, format: bytes, start: 1969-12-31}", "sources.a.start is '1969-12-31'; wanted: "
         "earliest, latest, or a time such as 2026-01-31T12:00:00Z"),
        ("{topic: t, format: bytes, bad_records: {topic: t}}", "sources.a.bad_records.topic is the "
         "topic that is read, so its bad records would come back for ever; choose another"),
        ("{topic: t, format: bytes, bad_records: {}}", "the key topic is missing in "
         "sources.a.bad_records; add `topic: orders`"),
        ("{topic: t, format: bytes, bad_records: ignore}", "sources.a.bad_records is 'ignore'; "
         "wanted: fail or drop"),
        ("{topic: t, format: bytes, partition_by: x}", "the key partition_by is unknown in "
         "sources.a; known are topic, topics, start,"),
        ("{topic: t, format: bytes, read: table}", "the key read is unknown in sources.a; "
         "sources.a may have topic,"),
        ("{topic: t, format: bytes, options: {subscribe: x}}", "sources.a.options.subscribe: the "
         "key topic says this; use it"),
        ("{topic: t, format: bytes, options: {deadLetterTopic: d}}",
         "sources.a.options.deadLetterTopic: the key bad_records says this; use it"),
        ("{topic: t, format: bytes, options: {minPartitons: 2}}", "sources.a.options.minPartitons "
         "is no option of a topic; did you mean minPartitions?"),
        ("{topic: t, format: bytes, options: {kafka.fetch.max.bites: 2}}",
         "sources.a.options.kafka.fetch.max.bites is no setting of Kafka's clients; did you mean "
         "fetch.max.bytes?"),
        ("{topic: t, format: bytes, options: {endingOffsets: latest}}",
         "sources.a.options.endingOffsets is not for pipelines; remove it"),
        ("{topic: t, format: bytes, options: {minPartitions: [1]}}",
         "sources.a.options.minPartitions is a list; wanted: text"),
        ("{files: x, format: csv}", "format: csv in sources.a needs the key schema; "),
        ("{files: x}", "the key format is missing in sources.a; add it: json, csv, parquet or "
         "avro"),
        ("{files: x, format: avro, read: table, max_files_per_batch: 2}",
         "sources.a.max_files_per_batch goes only with read: stream; remove it, or change read"),
        ("{jdbc: postgres://h/db, table: t}", "sources.a.jdbc is 'postgres://h/db'; wanted: a JDBC "
         "URL, for example jdbc:postgresql://localhost/shop"),
        ("{jdbc: 'jdbc:postgresql://h/db'}", "the key table is missing in sources.a; "),
        ("{rate: fast}", "sources.a.rate is 'fast'; wanted: a whole number from 1"),
    ],
)  # fmt: skip
def test_a_wrong_source_gets_a_line(source: str, expected: str, tmp_path: Path) -> None:
    told = problems(tmp_path, shop_with(sources=f"sources:\n  a: {source}\n"))
    assert len(told) == 1
    place, _, text = told[0].partition(": ")
    assert place.startswith("4:")
    assert text.startswith(expected)


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ("{topic: t}", "the key from is missing in sinks.s; add it: a source's or view's name"),
        ("{from: orders}", "sinks.s needs one of the keys topic, files, current_table, jdbc or "
         "delta"),
        ("{from: order, topic: t}", "sinks.s.from: order is no source and no view; did you mean "
         "orders?"),
        ("{from: x, topic: t}", "sinks.s.from: x is no source and no view; there are orders"),
        ("{from: orders, topic: t, mode: upsert}", "sinks.s.mode is 'upsert'; wanted: append, "
         "update or complete"),
        ("{from: orders, topic: t, format: avro}", "format: avro in sinks.s needs the key schema; "
         "add it: a schema"),
        ("{from: orders, topic: t, format: avro, schema: '{}'}", "sinks.s.schema: "),
        ("{from: orders, topic: t, options: {topic: u}}", "sinks.s.options.topic: the key topic "
         "says this; use it"),
        ("{from: orders, topic: t, options: {minPartitions: 1}}", "sinks.s.options.minPartitions "
         "is no option of a topic"),
        ("{from: orders, files: x, format: json, mode: complete}", "sinks.s.mode is 'complete'; "
         "wanted: append"),
        ("{from: orders, current_table: x}", "the key keys is missing in sinks.s; add it: a "
         "column's name, for example shop, or a list of such"),
        ("{from: orders, current_table: x, keys: k, mode: append}", "sinks.s.mode is 'append'; "
         "wanted: upsert"),
        ("{from: orders, delta: x, mode: upsert}", "mode: upsert in sinks.s needs the key keys; "),
        ("{from: orders, delta: x, tombstone_life: 1 day}", "sinks.s.tombstone_life goes only with "
         "mode: upsert; "),
        ("{from: orders, delta: x, mode: upsert, keys: k, tombstone_life: 1}", "sinks.s."
         "tombstone_life is '1'; wanted: a duration"),
        ("{from: orders, delta: x, mode: upsert, keys: k, order: d}", "the key order is unknown in "
         "sinks.s; it is called sequence_by there"),
        ("{from: orders, current_table: x, keys: k, delete: d}", "the key delete is unknown in "
         "sinks.s; it is called apply_as_deletes there"),
        ("{from: orders, delta: x, key: k}", "the key key is unknown in sinks.s; it is called keys "
         "there"),
        ("{from: orders, delta: x, partition_by: {a: b}}", "sinks.s.partition_by is a mapping; "
         "wanted: a column's name, for example shop"),
    ],
)  # fmt: skip
def test_a_wrong_sink_gets_a_line(sink: str, expected: str, tmp_path: Path) -> None:
    told = problems(tmp_path, shop_with(sinks=f"sinks:\n  s: {sink}\n"))
    assert len(told) == 1
    place, _, text = told[0].partition(": ")
    assert place.startswith("6:")
    assert text.startswith(expected)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("views: {v: {}}", "5:9: views.v needs one of the keys sql, file or python"),
        ("views: {v: ''}", "5:12: views.v has no value; wanted: a SELECT, "),
        ("views: {v: {sql: SELECT 1, python: 'a:b'}}", "5:9: views.v has sql and python; a view "
         "has one of sql, file or python"),
        ("views: {v: {python: a.b}}", "5:21: views.v.python is 'a.b'; wanted: module:function, for "
         "example totals:per_shop"),
        ("views: {v: {file: gone.sql}}", "5:19: {tmp_path}/gone.sql is not there; check the SQL "
         "file's name"),
        ("views: {v: {file: p.yaml/x}}", "5:19: {tmp_path}/p.yaml/x cannot be read: Not a "
         "directory"),
        ("views: {1st: SELECT 1}", "5:9: '1st' is no name for a view; use letters, digits and _, a "
         "letter first"),
        ("views: {Orders: SELECT 1}", "5:9: views.Orders has the name of sources.orders; rename "
         "one of them"),
        ("views: {}", "5:8: views is empty; wanted: at least one view"),
        ("views: [a]", "5:8: views is a list; wanted: a mapping of views by name"),
        ("sinks: {a: {from: orders, topic: t}, A: {from: orders, topic: t}}", "5:38: sinks.A has "
         "the name of sinks.a; rename one of them"),
        ("tests: {a b: {given: {ordrs: x}, expect: {orders: y}}}", "5:22: tests.a b.given: ordrs "
         "is no source; did you mean orders?"),
        ("tests: {a: {given: {orders: x}, expect: {views: y}}}", "5:41: tests.a.expect: views is "
         "no source and no view; there are orders"),
        ("tests: {a: {given: {orders: x}, expect: {x.bad: y}}}", "5:41: tests.a.expect: x is no "
         "source; there are orders"),
        ("tests: {a: {given: {orders: x}}}", "5:9: the key expect is missing in tests.a; add it: "),
        ("kafka: {security.protokol: x}", "5:9: kafka.security.protokol is no setting of Kafka's "
         "clients; did you mean security.protocol?"),
        ("kafka: {bootstrap.servers: x}", "5:9: kafka.bootstrap.servers: the key bootstrap says "
         "this; use it"),
        ("kafka: {interceptor.classes: x}", "5:9: kafka.interceptor.classes is not supported; "
         "remove it"),
        ("kafka: {security.protocol: TLS}", "5:9: kafka.security.protocol=TLS: it is one of "),
        ("kafka: {security.protocol: SASL_SSL, sasl.mechanism: PLAIN}", "5:8: sasl.jaas.config is "
         "missing: it has the user name and the password"),
        ("kafka: {security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.jaas.config: x}",
         "5:61: kafka.sasl.jaas.config does not begin with a login module and `required`"),
        ("bootstrap: a:9092,b:0", "5:12: bootstrap: 'b:0' has no port between 1 and 65535"),
        ("spark: {sql.ansi.enabled: true}", "5:9: sql.ansi.enabled is no setting of Spark; they "
         "begin with `spark.`"),
        ("sinks: {a: {from: orders, topic: t}}\nspark: {spark.speculation: true}",
         "6:9: spark.speculation would run a slow task twice at once, and both would write their "
         "messages to sinks.a; remove it"),
        ("bootstrap: localhost", "5:12: bootstrap is 'localhost'; wanted: host:port, several with "
         "commas, for example 127.0.0.1:9092"),
        ("restarts: {max: -1}", "5:17: restarts.max is '-1'; wanted: a whole number from 0"),
        ("restarts: 5", "5:11: restarts is '5'; wanted: a mapping of the keys max, backoff, "
         "max_backoff"),
        ("trigger: 1 fortnight", "5:10: trigger is '1 fortnight'; wanted: a duration such as 10 "
         "seconds or 2 minutes"),
    ],
)  # fmt: skip
def test_the_other_sections_too(section: str, expected: str, tmp_path: Path) -> None:
    told = problems(tmp_path, shop_with(section=f"{section}\n"))
    assert len(told) == 1
    assert told[0].startswith(expected.replace("{tmp_path}", str(tmp_path)))


def test_speculation_is_refused_only_where_a_topic_is_written(tmp_path: Path) -> None:
    speculating = "spark: {spark.speculation: true}\n"
    files = "sinks: {a: {from: orders, files: out, format: json}}\n"
    assert read(tmp_path, shop_with(section=files + speculating)).sinks.keys() == {"a"}
    letters = "sources: {orders: {topic: o, format: string, bad_records: {topic: dead}}}\n"
    (told,) = problems(tmp_path, shop_with(sources=letters, section=files + speculating))
    assert "messages to sources.orders.bad_records" in told
    calm = "sinks: {a: {from: orders, topic: t}}\nspark: {spark.speculation: false}\n"
    assert read(tmp_path, shop_with(section=calm)).sinks.keys() == {"a"}


def test_an_empty_sql_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "v.sql").write_text(" \n")
    told = problems(tmp_path, shop_with(views="views: {v: {file: v.sql}}\n"))
    assert told == [f"5:19: {tmp_path}/v.sql is empty; write a SELECT into it"]


def test_sources_must_be_there(tmp_path: Path) -> None:
    expected = "1:1: the key sources is missing; add it: a mapping of sources by name"
    assert problems(tmp_path, "version: 1\nname: p\n") == [expected]


def test_a_name_that_is_the_key_of_something_wrong_is_still_known(tmp_path: Path) -> None:
    """One mistake is one line: the sink's `from` is right, though its view is not."""
    text = shop_with(views="views: {v: {python: x}}\n", sinks="sinks: {s: {from: v, topic: t}}\n")
    assert len(problems(tmp_path, text)) == 1


def test_no_more_than_so_many_problems_are_told(tmp_path: Path) -> None:
    text = shop_with(more="".join(f"nonsense{n}: 1\n" for n in range(PROBLEMS_MAX + 50)))
    assert len(problems(tmp_path, text)) == PROBLEMS_MAX
