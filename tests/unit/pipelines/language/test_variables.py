"""${NAME} in values."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.language.model import TopicSource
from unit.pipelines.pipeline_files import problems, read, shop_with

FILE = shop_with(trigger="trigger: {value}\n")


def trigger(directory: Path, value: str, **environment: str) -> str | None:
    return read(directory, FILE.replace("{value}", value), environment).trigger


def test_a_variable_is_filled_in(tmp_path: Path) -> None:
    assert trigger(tmp_path, "${EVERY}", EVERY="5 minutes") == "5 minutes"
    assert trigger(tmp_path, "'${N} ${UNIT}'", N="5", UNIT="seconds") == "5 seconds"


def test_the_default_counts_where_the_variable_is_not_set_or_empty(tmp_path: Path) -> None:
    assert trigger(tmp_path, "${EVERY:-1 second}") == "1 second"
    assert trigger(tmp_path, "${EVERY:-1 second}", EVERY="") == "1 second"
    assert trigger(tmp_path, "${EVERY:-1 second}", EVERY="2 seconds") == "2 seconds"


def test_variables_work_where_numbers_and_choices_stand(tmp_path: Path) -> None:
    text = shop_with(
        sources="""\
        sources:
          a: {topic: "${T}", format: "${F}", max_rows_per_batch: "${N}", headers: "${H}",
              deduplicate: ["${C}", b]}
        """
    )
    environment = {"T": "t", "F": "bytes", "N": "7", "H": "true", "C": "a"}
    source = read(tmp_path, text, environment).sources["a"]
    assert isinstance(source, TopicSource)
    assert (source.topics, source.format, source.max_rows_per_batch) == (("t",), "bytes", 7)
    assert (source.headers, source.deduplicate) == (True, ("a", "b"))


def test_a_value_cannot_become_structure(tmp_path: Path) -> None:
    evil = "a\nsinks: {s: {from: orders, topic: stolen}}"
    told = problems(tmp_path, shop_with(name='name: "${N}"\n'), {"N": evil})
    assert len(told) == 1
    assert told[0].startswith("2:7: name is 'a sinks: {s: ")
    # Nor is it filled in twice.
    assert read(tmp_path, shop_with(spark='spark: {spark.x: "${A}"}\n'), {"A": "${B}"}).spark == {
        "spark.x": "${B}"
    }


def test_two_dollars_are_one(tmp_path: Path) -> None:
    assert read(tmp_path, shop_with(spark="spark: {spark.x: 'a$${B} $5 $$ $'}\n")).spark == {
        "spark.x": "a${B} $5 $$ $"
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${GONE}", "5:10: the variable GONE is not set; set it, or write ${GONE:-…} with a "
         "default"),
        ("${}", "5:10: `${` is no variable; write ${NAME} or ${NAME:-default}, or $${"),
        ("${1X}", "5:10: `${` is no variable; write ${NAME} or ${NAME:-default}, or $${"),
        ("${NAME", "5:10: `${` is no variable; write ${NAME} or ${NAME:-default}, or $${"),
        ("${NAME-x}", "5:10: `${` is no variable; write ${NAME} or ${NAME:-default}, or $${"),
        ("${BROKEN}", "5:10: the variable BROKEN holds bytes that are no text"),
    ],
)  # fmt: skip
def test_what_is_no_variable_is_told_once_with_its_place(
    value: str, expected: str, tmp_path: Path
) -> None:
    environment = {"BROKEN": "\udcff"}
    assert problems(tmp_path, FILE.replace("{value}", value), environment) == [expected]


def test_every_missing_variable_is_told_at_once(tmp_path: Path) -> None:
    text = shop_with(spark='spark: {spark.a: "${A}", spark.b: "${B} ${C:-c} ${D}"}\n')
    told = problems(tmp_path, text)
    assert [line.split(" is not set")[0] for line in told] == [
        "5:18: the variable A",
        "5:35: the variable B",
        "5:35: the variable D",
    ]


def test_keys_are_taken_as_they_are(tmp_path: Path) -> None:
    told = problems(tmp_path, shop_with(more="${KEY}: 1\n"), {"KEY": "trigger"})
    assert told[0].startswith("5:1: the key ${KEY} is unknown")
