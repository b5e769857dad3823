"""What a person reads about a pipeline that cannot run, before anything of it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.pipelines.checks.broker_topics import BrokerTopics, broker_topics
from ottla.pipelines.checks.validation import validate
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told = Callable[..., list[str]]

# Eight lines, so what follows begins in the ninth.
HEAD = """\
version: 1
name: shop
bootstrap: 127.0.0.1:9
sources:
  orders:
    topic: orders
    schema: id string, shop string, amount decimal(10,2), at timestamp, tags map<string,string>
    watermark: {column: at, delay: 2 minutes}
"""
SINK = """\
sinks:
  out: {from: orders, topic: out}
"""
TOPICS = BrokerTopics({"orders": 3, "out": 1, "clicks": 1})


@pytest.fixture
def told(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The lines about a file, as `ottla pipeline validate shop.yaml` prints them."""
    monkeypatch.chdir(tmp_path)
    session = spark.newSession()

    def tell(text: str, topics: Mapping[str, int] | None = TOPICS) -> list[str]:
        file = Path("shop.yaml")
        file.write_text(text)
        pipeline = read_pipeline(file, environment={})
        found = validate(session, pipeline, topics=lambda: topics)
        assert not [table.name for table in session.catalog.listTables()]
        return [str(problem) for problem in found]

    return tell


def test_a_good_file_gets_no_line(told: Told) -> None:
    good = """\
views:
  totals: |
    SELECT window.start AS minute, shop, sum(amount) AS total
    FROM orders GROUP BY window(at, '1 minute'), shop
sinks:
  out: {from: totals, topic: out, key: shop}
  current: {from: orders, current_table: now, keys: id, apply_as_deletes: _tombstone}
  latest: {from: totals, current_table: latest, keys: [minute, shop]}
"""
    assert told(HEAD + good) == []


def test_each_mistake_in_sql_is_told_with_its_line_and_column(
    told: Told, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.sql").write_text("SELECT id,\n       shp\nFROM orders\n")
    views = """\
views:
  grammar: |
    SELECT id
    FROM orders
    WHERE > 1
  unfinished: SELECT id FROM orders WHERE amount >
  column: |
    SELECT o.id,
           o.shp
    FROM orders AS o
  own: {file: own.sql}
  table: SELECT * FROM orders JOIN `ordrs` USING (id)
  routine: SELECT uper(shop) FROM orders
  types: SELECT amount + tags FROM orders
  grouped: SELECT shop, sum(amount) FROM orders GROUP BY id
  command: CREATE TABLE stolen (id int)
  emoji: SELECT '😀', shp FROM orders
  broken_too: SELECT * FROM column
"""
    assert told(HEAD + views + SINK) == [
        "own.sql:2:8: view own: there is no column shp; did you mean shop?",
        "shop.yaml:13:11: view grammar: Syntax error at or near '>'.",
        "shop.yaml:14:51: view unfinished: Syntax error at or near end of input.",
        "shop.yaml:17:12: view column: there is no column o.shp; did you mean shop?",
        "shop.yaml:20:36: view table: ordrs is neither a source nor a view; did you mean orders?",
        "shop.yaml:21:19: view routine: there is no function uper",
        'shop.yaml:22:17: view types: Cannot resolve "(amount + tags)" due to data type mismatch: '
        "the left and right operands of the binary operator have incompatible types "
        '("DECIMAL(10,2)" and "MAP<STRING, STRING>").',
        'shop.yaml:23:12: view grouped: The non-aggregating expression "shop" is based on columns '
        "which are not participating in the GROUP BY clause. Add the columns or the expression to "
        'the GROUP BY, aggregate the expression, or use "any_value(shop)" if you do not care which '
        "of the values within a group is returned.",
        "shop.yaml:24:12: view command: Syntax error at or near 'CREATE'.",
        "shop.yaml:25:22: view emoji: there is no column shp; did you mean shop?",
    ]
    # PySpark would print every one of them with its traces.
    assert "QueryContextLogger" not in capfd.readouterr().err


def test_columns_of_time_are_there_and_are_times(told: Told) -> None:
    rest = """\
  clicks:
    topic: clicks
    schema: id string, at string, tags map<string,string>
    watermark: {column: att, delay: 1 minute}
  visits:
    topic: clicks
    schema: id string, at string, tags map<string,string>
    watermark: {column: at, delay: 1 minute}
    deduplicate: [idd, tags]
views:
  lately: {sql: SELECT * FROM orders, watermark: {column: shop, delay: 1 minute}}
  once: {sql: SELECT id FROM clicks, deduplicate: [id]}
  counted: SELECT id, count(*) AS n FROM clicks GROUP BY id
sinks:
  # Not told to need a watermark: it would have one.
  out: {from: counted, topic: out}
"""
    must = (
        "it must be a timestamp: change the schema, or CAST it in a view and put the watermark "
        "there"
    )
    assert told(HEAD + rest) == [
        "shop.yaml:9:3: source clicks: watermark: there is no column att; did you mean at?",
        "shop.yaml:13:3: source visits: deduplicate: tags is map<string,string>, which Spark "
        "cannot compare",
        "shop.yaml:13:3: source visits: deduplicate: there is no column idd; did you mean id?",
        f"shop.yaml:13:3: source visits: watermark: at is string; {must}",
        f"shop.yaml:19:3: view lately: watermark: shop is string; {must}",
        "shop.yaml:20:3: view once: deduplicate needs a watermark, which says for how long rows "
        "are remembered: add watermark: {column: …, delay: 10 minutes}",
    ]


def test_views_that_are_made_of_themselves(told: Told) -> None:
    views = """\
views:
  a: SELECT * FROM b
  b: SELECT * FROM (SELECT * FROM c)
  c: SELECT * FROM orders WHERE id IN (SELECT id FROM a)
  d: SELECT * FROM D
"""
    out_of_it = "take one of them out of the circle"
    assert told(HEAD + views + SINK) == [
        f"shop.yaml:12:55: view c is made of itself: a → b → c → a; {out_of_it}",
        f"shop.yaml:13:20: view d is made of itself: d → d; {out_of_it}",
    ]


def test_rows_that_cannot_be_sequenced(told: Told) -> None:
    rest = """\
  others: {topics: [orders, out], schema: "id bigint"}
views:
  offsets: SELECT id, shop, _offset FROM orders
  both: |
    SELECT id, _timestamp, _partition, _offset FROM orders
    UNION ALL SELECT id, _timestamp, _partition, _offset FROM others
sinks:
  alone: {from: offsets, current_table: now, keys: id}
  named: {from: orders, current_table: now, keys: id, sequence_by: _offset}
  union: {from: both, current_table: now, keys: id}
  several: {from: others, current_table: now, keys: id}
  declared: {from: both, current_table: now, keys: id, sequence_by: _timestamp}
"""
    lines = [line.partition(": sink ")[2] for line in told(HEAD + rest)]
    assert [line.partition(":")[0] for line in lines] == ["alone", "named", "union", "several"]
    assert "let offsets have _timestamp and _partition too, or name a column" in lines[0]
    assert "offsets of two partitions cannot be compared; leave sequence_by out" in lines[1]
    for line in lines[2:]:
        assert "comes of several topics (orders, out), whose offsets cannot be compared" in line


def test_what_a_sink_cannot_do_with_its_rows(told: Told) -> None:
    rest = """\
views:
  counted: SELECT shop, count(*) AS n FROM orders GROUP BY shop
  sorted: SELECT * FROM orders ORDER BY id
  twice: SELECT id, shop AS id FROM orders
  plain: SELECT id, shop, tags, at FROM orders
sinks:
  append: {from: counted, topic: out}
  complete: {from: orders, topic: out, mode: complete}
  sorts: {from: sorted, topic: out}
  same: {from: twice, topic: out}
  keyed: {from: orders, topic: out, key: shp}
  mapped: {from: orders, topic: out, key: tags}
  headed: {from: orders, topic: out, headers: tags}
  texts: {from: orders, topic: out, format: string}
  parted: {from: orders, files: out, format: json, partition_by: [tags]}
  tabled: {from: orders, files: out, format: csv}
  merged: {from: orders, current_table: now, keys: tags, sequence_by: tags, apply_as_deletes: shop}
  unordered: {from: plain, current_table: now, keys: id}
"""
    lines = told(HEAD + rest)
    assert lines[:6] == [
        "shop.yaml:15:3: sink append: mode append: counted has aggregates without a watermark, "
        "so no result is ever final; give the source a watermark and group by its column or a "
        "window of it, or set mode: update or complete",
        "shop.yaml:16:3: sink complete: mode complete: orders has no aggregates; set mode: append",
        "shop.yaml:17:3: sink sorts: mode append: Sorting is not supported on streaming "
        "DataFrames/Datasets, unless it is on aggregated DataFrame/Dataset in Complete output mode",
        "shop.yaml:18:3: sink same: twice has several columns named id; name its columns one by "
        "one instead of *, each with a name of its own",
        "shop.yaml:19:3: sink keyed: key: orders has no column shp; did you mean shop?",
        "shop.yaml:20:3: sink mapped: key: tags is map<string,string>; name one of its fields, or "
        "make it text in a view",
    ]
    # These lines are the sinks' own.
    assert [line.split(":")[3] for line in lines[6:10]] == [
        " sink headed", " sink texts", " sink parted", " sink tabled",
    ]  # fmt: skip
    assert lines[10:] == [
        "shop.yaml:25:3: sink merged: apply_as_deletes: 'shop' is no condition: Cannot resolve "
        '"shop" due to data type mismatch: Filter expression "shop" of type "STRING" is not a '
        "boolean.",
        "shop.yaml:25:3: sink merged: keys: tags is map<string,string>; Spark cannot tell two of "
        "these apart, name another column",
        "shop.yaml:25:3: sink merged: sequence_by: tags is map<string,string>; Spark cannot tell "
        "which of two is greater, name another column",
        "shop.yaml:26:3: sink unordered: which of two rows of plain with the same key is newer? "
        "add sequence_by: with a column that grows, or select _timestamp, _partition and _offset "
        "too",
    ]


def test_topics_that_do_not_exist(told: Told) -> None:
    text = (
        HEAD.replace("topic: orders", "topics: [orders, clics, other]")
        + """\
    bad_records: {topic: dead}
sinks:
  out: {from: orders, topic: outs}
"""
    )
    none = "does not exist on 127.0.0.1:9"
    read = [
        f"shop.yaml:5:3: source orders: topic clics {none}; did you mean clicks? If not, create it "
        "with `ottla topics create clics`",
        f"shop.yaml:5:3: source orders: topic other {none}; create it with "
        "`ottla topics create other`",
    ]
    dead = (
        f"shop.yaml:5:3: source orders: bad_records: topic dead {none}; create it with "
        "`ottla topics create dead`"
    )
    out = (
        f"shop.yaml:11:3: sink out: topic outs {none}; did you mean out? If not, create it with "
        "`ottla topics create outs`"
    )
    assert told(text) == [dead, *read, out]
    # Brokers that create topics by themselves do so when they are written to.
    assert told(text, BrokerTopics(TOPICS.partitions, creates_topics=True)) == read
    assert told(text, None) == ["no broker answers at 127.0.0.1:9: the topics were not looked at"]


def test_what_nobody_uses_is_worth_a_note(told: Told) -> None:
    rest = """\
  clicks: {topic: clicks, format: string}
views:
  idle: SELECT * FROM orders
"""
    assert told(HEAD + rest + SINK) == [
        "shop.yaml:9:3: source clicks is used by no sink and no test",
        "shop.yaml:11:3: view idle is used by no sink and no test",
    ]


def test_missing_jars_are_named_and_hide_nothing_else(told: Told) -> None:
    rest = """\
  customers: {jdbc: "jdbc:mysql://nowhere/shop", table: customers}
views:
  joined: SELECT * FROM orders JOIN customers USING (id)
  typo: SELECT shp FROM orders
"""
    jar, typo = told(HEAD + rest + SINK)
    assert jar.startswith(
        "shop.yaml:9:3: source customers needs the class com.mysql.cj.jdbc.Driver"
    )
    assert typo == "shop.yaml:12:16: view typo: there is no column shp; did you mean shop?"


PYTHON = """\
import helpers
from pyspark.sql import functions as F

def good(orders):
    return orders.where(F.col("amount") > helpers.LEAST)

def forgets(orders):
    orders.where("amount > 1")

def misspelt(ordres):
    return ordres

def raises(orders, spark):
    rates = {}
    return orders.where(F.lit(rates["EUR"]) > 1)

def no_column(orders):
    return orders.select("shp")
"""


def test_python_views_are_told_with_module_function_and_line(told: Told, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("LEAST = 10\n")
    (tmp_path / "rules.py").write_text(PYTHON)
    (tmp_path / "unfinished.py").write_text("def view(orders):\n    return (\n")
    (tmp_path / "needy.py").write_text("import no_such_package\n")
    views = """\
views:
  good: {python: "rules:good"}
  forgets: {python: "rules:forgets"}
  misspelt: {python: "rules:misspelt"}
  raises: {python: "rules:raises"}
  no_column: {python: "rules:no_column"}
  module: {python: "rule:good"}
  function: {python: "rules:god"}
  unfinished: {python: "unfinished:view"}
  needy: {python: "needy:view"}
"""
    path_before = list(sys.path)
    assert told(HEAD + views + SINK) == [
        "shop.yaml:11:21: view forgets: rules:forgets returned None; it must return a DataFrame",
        "shop.yaml:12:22: view misspelt: the parameter ordres of rules:misspelt is neither a "
        "source nor a view, nor spark; did you mean orders?",
        "shop.yaml:13:20: view raises: rules:raises failed at rules.py line 15: KeyError: 'EUR'",
        "shop.yaml:14:23: view no_column: rules:no_column failed at rules.py line 18: there is no "
        "column shp; did you mean shop?",
        f"shop.yaml:15:20: view module: there is no module rule in {tmp_path} or installed; did "
        "you mean rules?",
        "shop.yaml:16:22: view function: rules has no function god; did you mean good?",
        "shop.yaml:17:24: view unfinished: unfinished:view cannot be imported at unfinished.py "
        "line 2: SyntaxError: '(' was never closed",
        "shop.yaml:18:19: view needy: needy:view cannot be imported at needy.py line 1: "
        "ModuleNotFoundError: No module named 'no_such_package'",
    ]
    assert sys.path == path_before
    assert not {"rules", "helpers", "needy"} & sys.modules.keys()


def test_topics_are_asked_of_a_real_broker(
    broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(3)
    file = tmp_path / "shop.yaml"
    file.write_text(HEAD.replace("127.0.0.1:9\n", f"{broker.bootstrap}\n") + SINK)
    found = broker_topics(read_pipeline(file, environment={}))
    assert found is not None
    assert found[name] == 3
    assert found.creates_topics
    file.write_text(HEAD.replace("127.0.0.1:9\n", "127.0.0.1:1\n") + SINK)
    assert broker_topics(read_pipeline(file, environment={})) is None
