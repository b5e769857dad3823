"""--set: one value of the file, for one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.language.model import BadRecords, Sql, TopicSource
from unit.pipelines.pipeline_files import SHOP, problems, read, shop_with


def orders(directory: Path, **overrides: str) -> TopicSource:
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    source = read(directory, SHOP, {}, given).sources["orders"]
    assert isinstance(source, TopicSource)
    return source


def test_a_value_is_put_in_the_place_of_another(tmp_path: Path) -> None:
    assert orders(tmp_path, sources__orders__start="latest").start == "latest"
    assert read(tmp_path, SHOP, {}, {"name": "other"}).name == "other"


def test_a_value_is_added_where_there_was_none(tmp_path: Path) -> None:
    assert orders(tmp_path, sources__orders__max_rows_per_batch="7").max_rows_per_batch == 7
    assert read(tmp_path, SHOP, {}, {"restarts.max": "9"}).restarts.max == 9


def test_a_short_form_becomes_the_long_one_and_back(tmp_path: Path) -> None:
    assert orders(tmp_path, sources__orders__bad_records="drop").bad_records == BadRecords("drop")
    long = shop_with(sources="sources: {orders: {topic: t, format: bytes, bad_records: drop}}\n")
    pipeline = read(tmp_path, long, {}, {"sources.orders.bad_records.topic": "d"})
    assert pipeline.sources["orders"].bad_records == BadRecords("dead_letter", "d")
    body = read(tmp_path, SHOP, {}, {"views.totals.sql": "SELECT 1"}).views["totals"].body
    assert isinstance(body, Sql)
    assert body.text == "SELECT 1"


def test_names_of_settings_have_dots_themselves(tmp_path: Path) -> None:
    pipeline = read(
        tmp_path,
        SHOP,
        {},
        {
            "spark.spark.sql.shuffle.partitions": "8",
            "kafka.security.protocol": "SSL",
            "sources.orders.options.kafka.fetch.max.bytes": "1000",
        },
    )
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "8"}
    assert pipeline.kafka == {"security.protocol": "SSL"}
    assert pipeline.sources["orders"].options == {"kafka.fetch.max.bytes": "1000"}


def test_lists_and_mappings_are_written_as_in_yaml(tmp_path: Path) -> None:
    assert orders(tmp_path, sources__orders__deduplicate="[id, shop]").deduplicate == (
        "id",
        "shop",
    )
    assert orders(tmp_path, sources__orders__deduplicate="id").deduplicate == ("id",)
    source = orders(tmp_path, sources__orders__watermark="{column: at, delay: 1 hour}")
    assert source.watermark is not None
    assert source.watermark.delay == "1 hour"


@pytest.mark.parametrize(
    "value", ["a: b", "[a, b]", "{x", "*x", "- y", "'", "# no comment", "null", "~"]
)
def test_other_values_are_text_to_the_letter(value: str, tmp_path: Path) -> None:
    assert read(tmp_path, SHOP, {}, {"spark.spark.x": value}).spark == {"spark.x": value}


def test_variables_are_filled_in(tmp_path: Path) -> None:
    assert read(tmp_path, SHOP, {"N": "x"}, {"name": "a-${N}"}).name == "a-x"


def test_the_order_of_the_file_is_kept(tmp_path: Path) -> None:
    text = shop_with(spark="spark: {spark.a: 1, spark.b: 2, spark.c: 3}\n")
    spark = read(tmp_path, text, {}, {"spark.spark.a": "9"}).spark
    assert list(spark.items()) == [("spark.a", "9"), ("spark.b", "2"), ("spark.c", "3")]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("sources.orders.strat", "latest", "--set sources.orders.strat: the key strat is unknown "
         "in sources.orders; did you mean start?"),
        ("source.orders.start", "latest", "--set source.orders.start: the key source is unknown; "
         "did you mean sources?"),
        ("sources.orders.start", "later", "--set sources.orders.start: sources.orders.start is "
         "'later'; wanted: earliest, latest, or a time such as 2026-01-31T12:00:00Z"),
        ("sources.order.topic", "x", "--set sources.order.topic: format: json in sources.order "
         "needs the key schema; add `schema: id string, amount decimal(10,2)`"),
        ("name", "", "--set name: name has no value; wanted: a name, for example shop-totals"),
        ("", "x", "--set: write it as --set sources.orders.start=latest"),
        ("sources..start", "x", "--set sources..start: write it as --set "
         "sources.orders.start=latest"),
        ("tests.sums_by_shop.given.orders.x", "y", "--set tests.sums_by_shop.given.orders.x: this "
         "leads into a list; set the whole list"),
        ("sources.orders.deduplicate", "[a", "--set sources.orders.deduplicate: the value is no "
         "YAML; put quotes around it"),
        ("name", "a\0b", "a NUL or half a character is no text; remove it"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_the_option_that_said_it(
    path: str, value: str, expected: str, tmp_path: Path
) -> None:
    assert problems(tmp_path, SHOP, {}, {path: value}) == [expected]
